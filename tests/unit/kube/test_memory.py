"""What is remembered of a job between passes, and read as ages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observed.memory import REPLY_SECONDS_MAX, JobMemory
from unit.kube.cluster_values import hosts, learner, reply

POD = learner("us-east-0", "n1")
NEXT = replace(POD, uid="next")
FINAL, BARE = pb.StatusReply(state=pb.SHARD_COMPLETE), pb.StatusReply(state=pb.SHARD_SERVING)
GONE = 100.0 + REPLY_SECONDS_MAX


def one(state: str, reason: str = "", *, trouble: str = "") -> pb.StatusReply:
    """The answer of a shard that hears of the pod's slot."""
    slot = pb.SlotStatus(
        slot=POD.slot, state=f"SLOT_{state.upper()}", uid=POD.uid, reason=reason, trouble=trouble
    )
    return pb.StatusReply(state=pb.SHARD_SERVING, slots=[slot])


EXPIRED, TOLD = {"trouble": "expired"}, {POD.slot: "expired"}
LEFT, LOST = one("Left", "terminated"), one("Lost")
Look = tuple[float, Sequence[pb.StatusReply | None], Any]  # when, what comes, what is read then
LOOKS: dict[str, tuple[str, list[Look]]] = {
    "an answer is shown until it is too old": (
        "replies", [(100.0, [reply()], (reply(),)), (GONE, [], (reply(),)), (GONE + 1, [], (None,))]
    ),
    "a shard is silent since its last answer or since it was first asked": (
        "silent_seconds",
        [(100.0, [reply(), None], {0: 0.0, 1: 0.0}), (103.0, [None, None], {0: 3.0, 1: 3.0}),
         (105.0, [], {0: 5.0, 1: 5.0})],
    ),
    "a shard was asked when one answered": (
        "asked_at", [(100.0, [reply(), None], "at 100"), (103.0, [None, None], "at 100")]
    ),
    "a slot is absent while the registrar answers without it": (
        "absent_seconds",
        [(100.0, [reply()], {POD.slot: 0.0}), (104.0, [], {POD.slot: 4.0}),
         (105.0, [reply(us_east_0="Joining")], {})],
    ),
    "without a registrar no slot is absent but none is forgotten": (
        "absent_seconds",
        [(100.0, [reply()], {POD.slot: 0.0}), (150.0, [], {}),
         (160.0, [reply()], {POD.slot: 60.0})],
    ),
    "the tick stands still from its last change on": (
        "still_seconds", [(90.0, [], 0.0), (100.0, [reply()], 0.0), (130.0, [reply()], 30.0),
                          (131.0, [], 31.0)],
    ),
    "the end is dated by the registrar's first Complete": (
        "final_seconds",
        [(99.0, [], None), (100.0, [FINAL], 0.0), (110.0, [FINAL], 10.0), (120.0, [], 20.0)],
    ),
    "what a learner said of its credentials outlives a shard that starts again": (
        "troubles",
        [(100.0, [one("Training", **EXPIRED)], TOLD), (101.0, [BARE], TOLD), (102.0, [LOST], TOLD),
         (103.0, [one("Training")], {})],
    ),
    "of several shards the one that hears a learner is believed": (
        "troubles",
        [(100.0, [one("Lost", **EXPIRED), one("Training")], {}),
         (101.0, [LOST, one("Training", **EXPIRED)], TOLD)],
    ),
    "who was told to terminate is away until it does more than join": (
        "left_seconds",
        [(100.0, [one("Training")], {}), (101.0, [LEFT], {POD.slot: 0.0}),
         (105.0, [LEFT], {POD.slot: 4.0}), (106.0, [BARE], {POD.slot: 5.0}),
         (107.0, [one("Joining")], {POD.slot: 6.0}), (108.0, [one("Training")], {}),
         (109.0, [LOST], {}), (110.0, [one("Left", "ValueError: boom")], {})],
    ),
    "a stall is timed without a break": (
        "stalled_seconds",
        [(100.0, [reply(us_east_0="Stalled")], {POD.uid: 0.0}),
         (160.0, [reply(us_east_0="Stalled")], {POD.uid: 60.0}),
         (161.0, [reply(us_east_0="Training")], {}),
         (162.0, [reply(us_east_0="Stalled")], {POD.uid: 0.0})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_what_is_remembered(name: str) -> None:
    memory, (what, looks) = JobMemory(uid="u"), LOOKS[name]
    shards = max(len(comes) for _, comes, _ in looks)
    for at, comes, read in looks:
        if comes:
            memory.take(comes, at, f"at {at:.0f}")
        assert getattr(memory.read(shards, [POD], at), what) == read, at


def test_what_a_learner_said_goes_with_its_pod_and_not_with_an_empty_pass() -> None:
    memory = JobMemory(uid="u")
    memory.take([one("Lost", **EXPIRED)], 100.0, "then")
    memory.read(0, [], 100.0)
    assert memory.read(1, [POD], 100.0).troubles == TOLD
    assert memory.read(1, [NEXT], 101.0).troubles == {}


def test_since_when_a_slot_is_wanted_is_known_of_those_that_came_later() -> None:
    memory = JobMemory(uid="u")
    assert memory.read(1, [], 100.0, ["a-0"]).wanted_seconds == {}
    assert memory.read(1, [], 110.0, ["a-0", "a-1"]).wanted_seconds == {"a-1": 0.0}
    assert memory.read(0, [], 115.0).wanted_seconds == {"a-1": 5.0}  # a manifest that is not known
    assert memory.read(1, [], 120.0, ["a-0"]).wanted_seconds == {}
    assert memory.read(1, [], 130.0, ["a-0", "a-1"]).wanted_seconds == {"a-1": 0.0}


def test_only_the_crashes_of_its_own_process_count_for_a_host() -> None:
    memory, (head, follower) = JobMemory(uid="u"), hosts("us-east-0", "n1", "n2")

    def noted(restarts: int, *codes: int | None, runs: bool = False) -> dict[str, int]:
        pods = hosts("us-east-0", "n1", "n2", exit_code=codes, restarts=restarts, runs=runs)
        return dict(memory.read(1, pods, 100.0).crashes)

    assert noted(0, None, None, runs=True) == {head.uid: 0, follower.uid: 0}
    for starts, codes, crashes in (
        (0, (75, 139), (0, 1)), (1, (139, 75), (1, 1)), (2, (75, 139), (1, 2)),
        (3, (64, 137), (1, 2)), (4, (75, 70), (1, 3)),
    ):  # fmt: skip
        for _ in range(2):  # an end counts once, however often it is seen
            assert noted(starts, *codes) == {head.uid: crashes[0], follower.uid: crashes[1]}
        assert noted(starts + 1, *codes, runs=True)[follower.uid] == crashes[1]
    assert memory.read(1, [], 200.0).crashes == {}
