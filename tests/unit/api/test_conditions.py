"""Phases, conditions and status of a job on a cluster."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api import status
from atoll_operator.api.conditions import decide, merged, rejected, transitions
from atoll_operator.api.facts import LEADING_MERGES, Facts, Kind, Phase, capped, leading, troubles
from atoll_operator.api.reasons import REASONS, STATUSES, TYPES, WARNINGS
from atoll_operator.api.shown import Condition
from unit.kube.cluster_values import job, reply

RUNNING = Phase(kind=Kind.RUNNING, reason="Running", message="")
FACTS = Facts(phase=RUNNING, shard_states=(pb.SHARD_SERVING, pb.SHARD_SERVING), desired=3, live=3)
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def of(facts: Facts) -> dict[str, str]:
    return {each.type: f"{each.status}/{each.reason}" for each in decide(facts)}


def test_all_types_are_there_from_the_first_pass() -> None:
    first = replace(FACTS, shard_states=(None, None), live=None)
    assert tuple(of(first)) == TYPES
    assert tuple(each.type for each in rejected("Invalid", "spec.x: is unknown")) == TYPES


def test_a_job_that_trains_says_so() -> None:
    found = of(FACTS)
    assert found["SyncerReady"] == "True/Serving"
    assert found["LearnersAvailable"] == "True/Quorum"
    assert found["Progressing"] == "True/Training"
    assert found["Degraded"] == "False/AllWell"


def test_what_cannot_be_seen_is_unknown() -> None:
    found = of(replace(FACTS, shard_states=(None, pb.SHARD_SERVING), live=None))
    assert {found[kind].partition("/")[0] for kind in TYPES[1:5]} == {"Unknown"}


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"live": 0}, "LearnersAvailable", "False/TooFew"),
        ({"live": 0}, "Progressing", "False/WaitingForLearners"),
        ({"live": 2}, "Degraded", "True/LearnersMissing"),
        ({"live": 2, "starting": ("a-0",)}, "Degraded", "False/LearnersStarting"),
        ({"live": 1, "starting": ("a-0",)}, "Degraded", "True/LearnersMissing"),
        ({"live": 2, "starting": ("a-0",), "losses": ("x",)}, "Degraded", "True/PodsMissing"),
        ({"live": 0, "starting": ("a-0",) * 3}, "LearnersAvailable", "False/LearnersStarting"),
        ({"live": 0, "starting": ("a-0",) * 3}, "Progressing", "False/LearnersStarting"),
        ({"live": 0, "starting": ("a-0",)}, "LearnersAvailable", "False/TooFew"),
        (
            {"live": 0, "starting": ("a-0",) * 3, "losses": ("x",)},
            "LearnersAvailable",
            "False/TooFew",
        ),
        ({"losses": ("x waits",)}, "Degraded", "True/PodsMissing"),
        ({"troubles": ("shard 1: full",)}, "Degraded", "True/StoreTrouble"),
        ({"shard_states": (pb.SHARD_SERVING, pb.SHARD_STARTING)}, "SyncerReady", "False/Starting"),
        (
            {"shard_states": (pb.SHARD_SERVING, pb.SHARD_STARTING)},
            "Progressing",
            "False/WaitingForSyncer",
        ),
        ({"stalled_seconds": 300.0}, "Progressing", "False/Stalled"),
        ({"held": ("4 of 5",)}, "NodeLossHeld", "True/Storm"),
        ({"drift": ("steps",)}, "SpecDrift", "True/Differs"),
    ],
)
def test_each_trouble_has_its_condition(change: dict[str, Any], kind: str, said: str) -> None:
    assert of(replace(FACTS, **change))[kind] == said


def test_when_every_shard_has_ended_no_learner_is_missed() -> None:
    found = of(replace(FACTS, shard_states=(pb.SHARD_FINAL, pb.SHARD_COMPLETE), live=0))
    assert found["LearnersAvailable"] == "True/TrainingOver"
    assert found["Progressing"] == "True/Exporting"
    assert found["Degraded"] == "False/AllWell"


def test_a_suspended_job_is_suspended_once_its_learners_are_gone() -> None:
    stopped = replace(RUNNING, kind=Kind.SUSPENDED)
    assert of(replace(FACTS, phase=stopped, pods_left=2))["Suspended"] == "False/Suspending"
    assert of(replace(FACTS, phase=stopped))["Suspended"] == "True/Suspended"


def test_a_transition_time_moves_only_with_the_status() -> None:
    old = merged([], decide(FACTS), 1, THEN)
    new = merged(old, decide(replace(FACTS, live=2)), 2, NOW)
    times = {each.type: each.last_transition_time for each in new}
    assert times["Degraded"] == NOW
    assert times["LearnersAvailable"] == THEN
    assert {each.observed_generation for each in new} == {2}


def test_only_changes_of_status_are_news_and_a_first_false_is_none() -> None:
    first = transitions([], decide(FACTS))
    assert [each.type for each in first] == [
        "Accepted", "SyncerReady", "LearnersAvailable", "Progressing",
    ]  # fmt: skip
    old = merged([], decide(FACTS), 1, THEN)
    later = transitions(old, decide(replace(FACTS, live=2, losses=("x",))))
    assert [(each.type, each.status) for each in later] == [("Degraded", "True")]


# ---------------------------------------------------------------- status


def body(*replies: pb.StatusReply | None) -> dict[str, Any]:
    view = status.View(
        job=job(), replies=replies, asked_at=NOW,
        ready={"us-east": 1, "eu-west": 0}, replaced={"us-east": 1},
    )  # fmt: skip
    return status.of(view).to_object()


def test_progress_is_the_lowest_step_and_the_mean_loss() -> None:
    registrar, other = reply(us_east_0="Training", us_east_1="Lost", eu_west_0="Training"), reply()
    other.tick = 58
    registrar.evaluation.loss = 2.25
    found = body(registrar, other)
    assert found["progress"] == {
        "step": 58, "tokens": 300, "loss": "2.5000", "progressPercentage": 9,
        "estimatedRemainingSeconds": 271, "lastUpdatedTime": NOW,
        "latePercentage": 0,
        "metrics": [
            {"name": "outer_loss", "value": "2.2500"}, {"name": "outer_loss_step", "value": "0"},
        ],
    }  # fmt: skip
    assert found["columns"] == {"learners": "2/3", "syncer": "2/2", "progress": "9%"}
    assert found["regions"][0] == {
        "name": "us-east", "learners": 2, "ready": 1, "replaced": 1, "live": 1, "lost": 1,
    }  # fmt: skip


def test_only_a_shard_that_serves_has_trouble_to_tell() -> None:
    full = pb.StatusReply(shard=1, state=pb.SHARD_FINAL, reason="no room")
    waits = pb.StatusReply(shard=0, state=pb.SHARD_STARTING, reason="no run has started yet")
    assert troubles([waits, full, None]) == ("shard 1: no room",)


def test_without_a_registrar_there_is_no_progress_and_no_count() -> None:
    found = body(None, reply())
    assert not {"progress", "learnersLive"} & found.keys()
    assert found["columns"]["learners"] == "?/3"
    assert found["syncer"]["epochs"] == [None, 1]


IDLE = {"NotAccepted", "Suspended", "Complete", "Failed"}


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"live": None},
        {"live": 0},
        {"shard_states": (None, pb.SHARD_SERVING), "live": None},
        {"shard_states": (pb.SHARD_FINAL, pb.SHARD_COMPLETE)},
        {"shard_states": (pb.SHARD_SEEDING,), "ephemeral": True, "pods_left": 1},
        {"losses": ("x",), "shard_problems": ("y",), "held": ("z",), "drift": ("d",)},
        {"troubles": ("t",), "stalled_seconds": 500.0},
    ],
)
def test_every_reason_stands_in_the_table_with_its_status(
    kind: Kind, change: dict[str, Any]
) -> None:
    reason = {Kind.COMPLETE: "Trained", Kind.FAILED: "StoreLost", Kind.REJECTED: "NotSupported"}
    phase = Phase(kind=kind, reason=reason.get(kind, "Evaluating"), message="")
    for each in decide(replace(FACTS, phase=phase, **change)):
        if each.reason in IDLE and each.status == "False":
            continue
        assert STATUSES[each.type, each.reason] == each.status


def test_every_reason_that_needs_a_person_has_a_remedy() -> None:
    for each in REASONS:
        good = each.status == ("False" if each.type in WARNINGS else "True")
        waits = each.reason in ("Suspending", "NotSuspended", "NotComplete")
        assert good or waits or each.remedy, f"{each.type} {each.reason}"


def test_a_condition_is_a_value() -> None:
    assert Condition(type="A", status="True", reason="B") == Condition(
        type="A", status="True", reason="B"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "CredentialsExpire"),
        ({"live": 2, "missing": ("eu-0",)}, "CredentialsExpire"),
        ({"losses": ("x waits",)}, "PodsMissing"),
        ({"exited": ("x has ended",)}, "PodsExited"),
    ],
)
def test_credentials_that_expire_are_named_whatever_else_is_wrong(
    change: dict[str, Any], reason: str
) -> None:
    found = decide(replace(FACTS, expiring=("eu-0: tls.crt: expired",), **change))
    (degraded,) = (each for each in found if each.type == "Degraded")
    assert degraded.reason == reason
    assert "eu-0: tls.crt: expired" in degraded.message


def slot(name: str, share: float, tokens: float, merges: int, above: float = 0.0) -> pb.SlotStatus:
    return pb.SlotStatus(
        slot=name,
        state=pb.SLOT_TRAINING,
        merge_share=share,
        merge_tokens_per_step=tokens,
        merges_over_half=merges,
        above_tokens_per_step=above,
    )


def test_a_learner_that_has_over_half_of_ten_merges_is_named_with_its_tokens_a_step() -> None:
    others = [slot("a-1", 0.01, 510.0, 0), slot("b-0", 0.01, 530.0, 0)]
    shard = pb.StatusReply(slots=[slot("a-0", 0.98, 51_200.0, LEADING_MERGES), *others])
    (words,) = leading([None, shard])
    assert words.startswith("a-0 has 98% of the weight of the last merge, and over half")
    assert words.endswith("51,200 tokens a step, the others 510 to 530")
    assert of(replace(FACTS, leading=(words,)))["Degraded"] == "True/OneLearnerLeads"
    missing = replace(FACTS, leading=(words,), live=2)
    assert of(missing)["Degraded"] == "True/LearnersMissing"  # comes first
    few = pb.StatusReply(slots=[slot("a-0", 0.98, 51_200.0, LEADING_MERGES - 1), *others])
    assert leading([few]) == ()


def test_a_learner_that_says_more_tokens_than_it_may_is_named() -> None:
    shard = pb.StatusReply(slots=[slot("a-0", 0.3, 512.0, 0, above=51_200.0)])
    assert capped([shard, None]) == ("a-0 says 51,200 tokens a step, and 512 are counted",)
    assert of(replace(FACTS, capped=("x",)))["Degraded"] == "True/TokensAboveLimit"
    assert capped([pb.StatusReply(slots=[slot("a-0", 0.3, 512.0, 0)])]) == ()
