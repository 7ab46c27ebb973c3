"""Which learners start, and for which of them a job is degraded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.conditions import STARTING_SECONDS_MAX, Phase, PhaseKind
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import OLD_TEMPLATE, Observation, Pod, Remembered
from atoll_operator.kube.plan import status
from atoll_operator.kube.plan.actions import Event
from atoll_operator.kube.plan.phase import Before
from atoll_operator.kube.plan.replacements import NodeState, Placement
from atoll_operator.kube.plan.situation import Situation
from atoll_operator.kube.plan.status import starting
from unit.kube.cluster_values import SETTINGS, job, learner, reply

NOW = 1_800_000_000.0
AN_HOUR = 3600.0
SLOT = "us-east-1"
YOUNG = learner(SLOT, "n1", made_at=NOW - 20.0, uid="next")
OLD = learner(SLOT, "n1", made_at=NOW - AN_HOUR)
TROUBLES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("it crashes", {"restarts": 1}, {}),
    ("it has ended", {"exit_code": 1}, {}),
    ("it was evicted", {"phase": "Failed"}, {}),
    ("no node has room", {"unschedulable": "0/3 nodes are available"}, {}),
    ("its Secret is not there", {"held_up": 'secret "s" not found'}, {}),
    ("its image is not there", {"waiting": "ImagePullBackOff"}, {}),
    ("its node is lost", {}, {"lost": ("n1",)}),
]
ROLLED = {(f"tiny-{SLOT}", f"{OLD_TEMPLATE} abc"): 5.0}


OTHERS = {"us_east_0": "Training", "eu_west_0": "Training"}


def scene(
    state: str = "",
    pods: Sequence[Pod] = (YOUNG,),
    *,
    here: tuple[str, ...] = ("*",),
    lost: Sequence[str] = (),
    running_seconds: float = AN_HOUR,
    hosts: int = 1,
    others: dict[str, str] = OTHERS,
    **remembered: Any,
) -> Situation:
    """The slot is the only one missing of a job that has run for an hour, in this state."""
    registrar = reply(**others, **({"us_east_1": state} if state else {}))
    return Situation(
        seen=Observation(
            at=0.0,
            raw={},
            pods=tuple(pods),
            remembered=Remembered(replies=(registrar, reply()), **remembered),
        ),
        job=job(f"spec.learner.hosts={hosts}"),
        settings=replace(SETTINGS, regions=here),
        now=NOW,
        before=Before(running_seconds=running_seconds),
        placement=Placement(lost=dict.fromkeys(lost, NodeState.SILENT)),
        phase=Phase(kind=PhaseKind.RUNNING, reason="Running", message=""),
    )


def joining_for_the_first_time() -> Situation:
    found = scene("Joining")
    assert found.seen.registrar is not None
    next(s for s in found.seen.registrar.slots if s.slot == SLOT).tokens_here = 0
    return found


def in_its_first_step(state: str, tokens: int = 0, **more: Any) -> Situation:
    """Of the present pod; shards have heard of these tokens of the slot."""
    found = scene(state, (replace(YOUNG, uid=OLD.uid),), **more)
    assert found.seen.registrar is not None
    shown = next(s for s in found.seen.registrar.slots if s.slot == SLOT)
    shown.tokens_here, shown.step_seconds = tokens, 0.0
    return found


STARTS: dict[str, Situation] = {
    "its first pod has just been made": scene(),
    "it joins for the first time": joining_for_the_first_time(),
    "it makes its first step": in_its_first_step("Training"),
    "its first step takes longer than 2 s": in_its_first_step("Stalled"),
    "so does that of a new template": in_its_first_step("Stalled", 100, deleted_seconds=ROLLED),
    "the job is new": scene(pods=(), running_seconds=5.0),
    "the job has grown": scene(pods=(), wanted_seconds={SLOT: 5.0}),
    "another cluster's region has yet to join": scene(
        pods=(), here=("eu-west",), wanted_seconds={SLOT: 5.0}
    ),
    "another cluster has restarted it": scene(
        "Left", (), here=("eu-west",), left_seconds={SLOT: 5.0}
    ),
    "what another cluster has restarted joins": scene(
        "Joining", (), here=("eu-west",), left_seconds={SLOT: 5.0}
    ),
    "its pod was deleted for a new template": scene("Lost", deleted_seconds=ROLLED),
    "the pod of the new template has yet to be": scene("Lost", (), deleted_seconds=ROLLED),
    "the pods of its hosts were deleted for a new template": scene(
        "Lost", (), hosts=2, deleted_seconds={(f"tiny-{SLOT}-1", OLD_TEMPLATE): 5.0}
    ),
    "its pod is told to terminate": scene(
        "Left", (replace(OLD, terminating=True),), left_seconds={SLOT: 5.0}
    ),
    "the job was suspended for an hour": scene(
        "Left", left_seconds={SLOT: AN_HOUR}, running_seconds=5.0
    ),
    "the job was suspended for an hour and has no pods yet": scene(
        "Left", (), left_seconds={SLOT: AN_HOUR}, running_seconds=5.0
    ),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_learner_starts_as_it_was_told(case: str) -> None:
    assert starting(STARTS[case]) == (SLOT,)


MISSED: dict[str, Situation] = {
    "its node or its process was lost": scene("Lost"),
    **{
        f"the new pod has trained, and is {state}": scene(
            state, (replace(YOUNG, uid=OLD.uid),), deleted_seconds=ROLLED
        )
        for state in ("Lost", "Stalled", "Recovering", "Left")
    },
    "the pod of another was deleted for a new template": scene(
        "Lost", deleted_seconds={("tiny-us-east-0", OLD_TEMPLATE): 5.0}
    ),
    "and comes back": scene("Joining"),
    "and makes its first step again": in_its_first_step("Stalled", 100),
    "it has left by itself": scene("Left"),
    "it hangs": scene("Stalled", (OLD,), deleted_seconds=ROLLED),
    "it has been starting for an hour": scene(pods=(OLD,)),
    "its pod stays": scene("Left", (OLD,), left_seconds={SLOT: 5.0}),
    "it never had a pod": scene(pods=()),
    "its job was deleted in another cluster": scene(
        "Left", (), here=("eu-west",), left_seconds={SLOT: 61.0}
    ),
    "the region has left for good": scene(
        "Left", (), here=("eu-west",), left_seconds={SLOT: AN_HOUR}
    ),
    **{what: scene(pods=(replace(YOUNG, **wrong),), **more) for what, wrong, more in TROUBLES},
}


@pytest.mark.parametrize("case", MISSED)
def test_a_learner_is_missed(case: str) -> None:
    assert starting(MISSED[case]) == ()


def test_only_the_slots_that_start_are_named_in_their_order() -> None:
    pods = (YOUNG, replace(OLD, name="tiny-us-east-0", ordinal=0))
    found = scene(pods=pods, others={}, wanted_seconds={"eu-west-0": 1.0})
    assert starting(found) == (SLOT, "eu-west-0")


# ---------------------------------------------------------------- what the job says of it


def said(
    old: dict[str, Any] | None, registrar: pb.StatusReply, quorum: int = 1, **remembered: Any
) -> tuple[dict[str, tuple[str, str, str]], tuple[Event, ...], dict[str, Any]]:
    """Status, reason and message by condition; Events; the whole status."""
    started = {"startTime": rfc3339(NOW - AN_HOUR)}
    seen = Observation(
        at=0.0,
        raw={
            "metadata": {"name": "tiny", "namespace": "demo", "uid": "u", "generation": 1},
            "status": old or started,
        },
        pods=(YOUNG,),
        remembered=Remembered(replies=(registrar, reply()), **remembered),
    )
    write = status.of_job(
        Situation(
            seen=seen, job=job(f"spec.sync.quorum={quorum}"), settings=SETTINGS, now=NOW,
            before=Before(running_seconds=AN_HOUR), placement=Placement(),
            phase=Phase(kind=PhaseKind.RUNNING, reason="Running", message=""),
        )
    )  # fmt: skip
    assert write is not None
    conditions = {
        each["type"]: (each["status"], each["reason"], each["message"])
        for each in write.status["conditions"]
    }
    return conditions, write.events, dict(write.status)


START = f"1 of 3 learners start: {SLOT}"
ALL = reply(us_east_0="Training", us_east_1="Training", eu_west_0="Training")
ONE_AWAY = reply(us_east_0="Training", us_east_1="Lost", eu_west_0="Training")


def test_a_rolling_edit_is_no_degradation_and_its_learner_is_named() -> None:
    _, _, well = said(None, ALL)
    found, events, _ = said(well, ONE_AWAY, deleted_seconds=ROLLED)
    assert found["Degraded"] == ("False", "LearnersStarting", START)
    assert found["Progressing"][:2] == ("True", "Training")
    assert "2 of 3 in training" in found["Progressing"][2]
    assert SLOT in found["Progressing"][2]
    assert found["Ready"] == ("True", "Training", START)
    assert events == ()


def test_a_rolling_edit_that_must_leave_the_quorum_brings_no_warning() -> None:
    _, _, well = said(None, ALL, quorum=3)
    found, events, _ = said(well, ONE_AWAY, quorum=3, deleted_seconds=ROLLED)
    assert found["Progressing"][:2] == ("False", "LearnersStarting")
    assert SLOT in found["Progressing"][2]
    assert found["Degraded"][0] == "False"
    assert {each.reason for each in events} == {"ProgressingFalse"}
    assert not any(each.warning for each in events)


def test_a_learner_that_is_lost_beside_one_that_starts_is_missed_alone() -> None:
    _, _, well = said(None, ALL)
    two_away = reply(us_east_0="Training", us_east_1="Lost", eu_west_0="Lost")
    found, events, _ = said(well, two_away, deleted_seconds=ROLLED)
    message = "1 of 3 learners are not in training: eu-west-0"
    assert found["Degraded"] == ("True", "LearnersMissing", message)
    assert [each.reason for each in events if each.warning] == ["DegradedTrue"]


def test_a_learner_that_was_lost_is_a_degradation_and_too_few_a_warning() -> None:
    _, _, well = said(None, ALL, quorum=3)
    found, events, _ = said(well, ONE_AWAY, quorum=3)
    assert found["Degraded"][1] == "LearnersMissing"
    assert found["Progressing"][1] == "WaitingForLearners"
    warned = {each.reason for each in events if each.warning}
    assert warned == {"DegradedTrue", "ProgressingFalse"}


def test_what_starts_for_too_long_is_missed() -> None:
    seconds = STARTING_SECONDS_MAX
    late = replace(YOUNG, made_at=NOW - seconds)
    assert starting(scene(pods=(replace(late, made_at=NOW - seconds + 1),))) == (SLOT,)
    assert starting(scene(pods=(late,))) == ()
    assert starting(scene(pods=(YOUNG,), lost=("n1",))) == ()
