"""Phases, conditions and status of a job on a cluster."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.conditions import (
    LEADING_MERGES,
    Facts,
    Phase,
    PhaseKind,
    capped,
    conditions_of,
    leading,
    merged,
    rejected,
    same_data,
    transitions,
    troubles,
)
from atoll_operator.api.status.reasons import REASONS, STATUSES, TYPES, WARNINGS

RUNNING = Phase(kind=PhaseKind.RUNNING, reason="Running", message="")
FACTS = Facts(phase=RUNNING, shard_states=(pb.SHARD_SERVING, pb.SHARD_SERVING), desired=3, live=3)
STOPPED: dict[str, Any] = {"phase": replace(RUNNING, kind=PhaseKind.SUSPENDED)}
STARTING: dict[str, Any] = {"live": 0, "starting": ("a-0",) * 3}
ONE_STARTS: dict[str, Any] = {"shard_states": (pb.SHARD_SERVING, pb.SHARD_STARTING)}
ENDED: dict[str, Any] = {"shard_states": (pb.SHARD_FINAL, pb.SHARD_COMPLETE), "live": 0}
THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def of(facts: Facts) -> dict[str, str]:
    return {each.type: f"{each.status}/{each.reason}" for each in conditions_of(facts)}


def test_all_types_are_there_from_the_first_pass() -> None:
    first = of(replace(FACTS, shard_states=(None, pb.SHARD_SERVING), live=None))
    assert tuple(first) == TYPES
    assert {first[kind].partition("/")[0] for kind in TYPES[1:4]} == {"Unknown"}
    assert tuple(each.type for each in rejected("Invalid", "spec.x: is unknown")) == TYPES


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({}, "SyncerReady", "True/Serving"),
        ({}, "Progressing", "True/Training"),
        ({}, "Degraded", "False/AllWell"),
        (ENDED, "Progressing", "True/Exporting"),
        (ENDED, "Degraded", "False/AllWell"),
        ({"live": 0}, "Progressing", "False/WaitingForLearners"),
        ({"live": 2}, "Degraded", "True/LearnersMissing"),
        ({"live": 2, "starting": ("a-0",)}, "Degraded", "False/LearnersStarting"),
        ({"live": 1, "starting": ("a-0",)}, "Degraded", "True/LearnersMissing"),
        ({"live": 2, "starting": ("a-0",), "losses": ("x",)}, "Degraded", "True/PodsMissing"),
        (STARTING, "Progressing", "False/LearnersStarting"),
        ({"live": 0, "starting": ("a-0",)}, "Progressing", "False/WaitingForLearners"),
        ({**STARTING, "losses": ("x",)}, "Progressing", "False/WaitingForLearners"),
        ({"losses": ("x waits",)}, "Degraded", "True/PodsMissing"),
        ({"troubles": ("shard 1: full",)}, "Degraded", "True/StoreTrouble"),
        (ONE_STARTS, "SyncerReady", "False/Starting"),
        (ONE_STARTS, "Progressing", "False/WaitingForSyncer"),
        ({"reading": ("shard 1",)}, "SyncerReady", "False/Starting"),
        ({"reading": ("shard 1",)}, "Progressing", "True/Training"),
        ({"stalled_seconds": 300.0}, "Progressing", "False/Stalled"),
        ({"held": ("4 of 5",)}, "Degraded", "True/NodeLossHeld"),
        ({"held": ("4 of 5",), "exited": ("x",)}, "Degraded", "True/NodeLossHeld"),
        ({"drift": ("steps",)}, "Progressing", "True/LengthDiffers"),
        ({"drift": ("steps",)}, "Ready", "True/Training"),
        ({"other_counts": ("x",)}, "Degraded", "True/OtherCounts"),
        ({"other_counts": ("x",), "live": 2}, "Degraded", "True/OtherCounts"),
        ({"stale_endpoints": ("x",)}, "Degraded", "True/StaleEndpoints"),
        ({"transport": "x"}, "Degraded", "True/TransportDiffers"),
        ({"transport": "x", "live": 2}, "Degraded", "True/LearnersMissing"),
        ({**STOPPED, "pods_left": 2}, "Suspended", "False/Suspending"),
        (STOPPED, "Suspended", "True/Suspended"),
    ],
)
def test_each_trouble_has_its_condition(change: dict[str, Any], kind: str, said: str) -> None:
    assert of(replace(FACTS, **change))[kind] == said


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({}, "Progressing", "3 of 3 in training, quorum 1"),
        (
            {"live": 0, "losses": ("x waits",)},
            "Progressing",
            "0 of 3 in training, quorum 1; x waits",
        ),
        (ONE_STARTS, "Progressing", "3 of 3 in training, quorum 1"),
        ({"drift": ("steps",), "late": "late"}, "Progressing", "quorum 1; steps; late"),
        ({"drift": ("steps",)}, "Ready", "steps"),
        ({"drift": ("steps",), **ENDED}, "Progressing", "steps"),
        ({"drift": ("steps",), "live": 0}, "Progressing", "quorum 1; steps"),
        ({"held": ("4 of 5",), "losses": ("x",)}, "Degraded", "4 of 5; x"),
        ({"transport": "plain", "losses": ("x",)}, "Degraded", "x; plain"),
        ({"other_counts": ("5",), "stale_endpoints": ("old",)}, "Degraded", "5; old"),
        ({**STOPPED, "transport": "plain"}, "Suspended", "plain"),
    ],
)
def test_all_that_is_wrong_is_in_the_message_beside_the_first_reason(
    change: dict[str, Any], kind: str, words: str
) -> None:
    (found,) = (x for x in conditions_of(replace(FACTS, **change)) if x.type == kind)
    assert words in found.message
    if kind == "Suspended":
        assert found.message == words


def test_only_changes_of_status_are_news_and_a_first_false_is_none() -> None:
    first = transitions([], conditions_of(FACTS))
    assert [each.type for each in first] == [
        "Accepted", "SyncerReady", "Progressing",
    ]  # fmt: skip
    old = merged([], conditions_of(FACTS), 1, THEN)
    later = conditions_of(replace(FACTS, live=2, losses=("x",)))
    assert [(x.type, x.status) for x in transitions(old, later)] == [("Degraded", "True")]
    new = merged(old, later, 2, NOW)
    times = {each.type: each.last_transition_time for each in new}
    assert (times["Degraded"], times["Progressing"]) == (NOW, THEN)
    assert {each.observed_generation for each in new} == {2}


IDLE = {"NotAccepted", "Suspended", "Complete", "Failed"}


@pytest.mark.parametrize("kind", list(PhaseKind))
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
def test_every_reason_has_its_status_in_the_table(kind: PhaseKind, change: dict[str, Any]) -> None:
    ends = {"COMPLETE": "Trained", "FAILED": "StoreLost", "REJECTED": "NotSupported"}
    phase = Phase(kind=kind, reason=ends.get(kind.name, "Evaluating"), message="")
    for each in conditions_of(replace(FACTS, phase=phase, **change)):
        if each.reason in IDLE and each.status == "False":
            continue
        assert STATUSES[each.type, each.reason] == each.status


def test_every_reason_that_needs_a_person_has_a_remedy() -> None:
    for each in REASONS:
        good = each.status == ("False" if each.type in WARNINGS else "True")
        waits = each.reason in ("Suspending", "NotSuspended", "NotComplete")
        assert good or waits or each.remedy, f"{each.type} {each.reason}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "CredentialsExpire"),
        ({"live": 2, "missing": ("eu-0",)}, "CredentialsExpire"),
        ({"losses": ("x waits",)}, "PodsMissing"),
        ({"exited": ("x has ended",)}, "PodsExited"),
    ],
)
def test_credentials_that_expire_are_named_in_any_case(change: dict[str, Any], reason: str) -> None:
    found = conditions_of(replace(FACTS, expiring=("eu-0: tls.crt: expired",), **change))
    (degraded,) = (each for each in found if each.type == "Degraded")
    assert degraded.reason == reason
    assert "eu-0: tls.crt: expired" in degraded.message


def slot(name: str, share: float, tokens: float, merges: int, above: float = 0.0) -> pb.SlotStatus:
    return pb.SlotStatus(
        slot=name, state=pb.SLOT_TRAINING, merge_share=share, merge_tokens_per_step=tokens,
        merges_over_half=merges, above_tokens_per_step=above,
    )  # fmt: skip


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


def test_learners_that_began_with_the_same_losses_are_named_with_what_to_do() -> None:
    began = {"a-0": 7, "a-1": 8, "b-0": 7, "b-1": 0, "b-2": 0}  # 0: it proves nothing
    slots = [pb.SlotStatus(slot=name, first_losses=digest) for name, digest in began.items()]
    words = same_data([pb.StatusReply(slots=slots), None])
    assert words.startswith("a-0, b-0 had equal losses in their first steps")
    assert "job.index" in words
    assert of(replace(FACTS, same_data=words))["Degraded"] == "True/SameData"
    assert same_data([pb.StatusReply(slots=slots[1:])]) == same_data([None]) == ""


def test_shards_name_who_says_too_many_tokens_and_what_they_try_again() -> None:
    above = pb.StatusReply(slots=[slot("a-0", 0.3, 512.0, 0, above=51_200.0)])
    assert capped([above, None]) == ("a-0 says 51,200 tokens a step, and 512 are counted",)
    assert of(replace(FACTS, capped=("x",)))["Degraded"] == "True/TokensAboveLimit"
    assert capped([pb.StatusReply(slots=[slot("a-0", 0.3, 512.0, 0)])]) == ()
    full = pb.StatusReply(shard=1, state=pb.SHARD_FINAL, reason="no room")
    waits = pb.StatusReply(shard=0, state=pb.SHARD_STARTING, reason="no run has started yet")
    assert troubles([waits, full, None]) == ("shard 1: no room",)  # of those that serve
