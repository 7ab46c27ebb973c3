"""What is remembered of a job between passes, and read as ages."""

from dataclasses import replace

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.memory import REPLY_SECONDS_MAX, Memory
from unit.kube.cluster_values import learner, reply

POD = learner("us-east-0", "n1")


def test_an_answer_is_shown_until_it_is_too_old() -> None:
    memory = Memory(uid="u")
    memory.take([reply()], 100.0, "then")
    assert memory.read(1, [], 100.0 + REPLY_SECONDS_MAX).replies == (reply(),)
    assert memory.read(1, [], 101.0 + REPLY_SECONDS_MAX).replies == (None,)


def test_a_shard_is_silent_since_its_last_answer_or_since_it_was_first_asked() -> None:
    memory = Memory(uid="u")
    memory.take([reply(), None], 100.0, "then")
    memory.take([None, None], 103.0, "later")
    assert memory.read(2, [], 105.0).silent_seconds == {0: 5.0, 1: 5.0}
    assert memory.asked_at == "then"


def test_a_slot_is_absent_while_the_registrar_answers_without_it() -> None:
    memory = Memory(uid="u")
    memory.take([reply()], 100.0, "then")
    assert memory.read(1, [POD], 100.0).absent_seconds == {POD.slot: 0.0}
    assert memory.read(1, [POD], 104.0).absent_seconds == {POD.slot: 4.0}
    memory.take([reply(us_east_0="Joining")], 105.0, "then")
    assert memory.read(1, [POD], 105.0).absent_seconds == {}


def test_without_a_registrar_no_slot_is_absent_but_none_is_forgotten() -> None:
    memory = Memory(uid="u")
    memory.take([reply()], 100.0, "then")
    memory.read(1, [POD], 100.0)
    assert memory.read(1, [POD], 150.0).absent_seconds == {}
    memory.take([reply()], 160.0, "then")
    assert memory.read(1, [POD], 160.0).absent_seconds == {POD.slot: 60.0}


def test_the_tick_stands_still_from_its_last_change_on() -> None:
    memory = Memory(uid="u")
    assert memory.read(1, [], 90.0).still_seconds == 0.0
    memory.take([reply()], 100.0, "then")
    memory.take([reply()], 130.0, "then")
    assert memory.read(1, [], 131.0).still_seconds == 31.0


def test_the_end_is_dated_by_the_registrars_first_complete() -> None:
    memory, final = Memory(uid="u"), pb.StatusReply(state=pb.SHARD_COMPLETE)
    assert memory.read(1, [], 100.0).final_seconds is None
    memory.take([final], 100.0, "then")
    memory.take([final], 110.0, "then")
    assert memory.read(1, [], 120.0).final_seconds == 20.0


def troubled(state: str, trouble: str = "", uid: str = POD.uid) -> pb.StatusReply:
    slot = pb.SlotStatus(slot=POD.slot, state=f"SLOT_{state.upper()}", uid=uid, trouble=trouble)
    return pb.StatusReply(state=pb.SHARD_SERVING, slots=[slot])


def test_what_a_learner_said_of_its_credentials_outlives_a_shard_that_starts_again() -> None:
    memory = Memory(uid="u")
    memory.take([troubled("Training", "expired")], 100.0, "then")
    assert memory.read(1, [POD], 100.0).troubles == {POD.slot: "expired"}
    for later in (pb.StatusReply(state=pb.SHARD_SERVING), troubled("Lost")):
        memory.take([later], 101.0, "then")
        assert memory.read(1, [POD], 101.0).troubles == {POD.slot: "expired"}
    memory.read(0, [], 102.0)  # a pass that could read nothing
    memory.take([troubled("Training")], 103.0, "then")
    assert memory.read(1, [POD], 103.0).troubles == {}


def test_what_a_learner_said_goes_with_its_pod() -> None:
    memory = Memory(uid="u")
    memory.take([troubled("Lost", "expired")], 100.0, "then")
    assert memory.read(1, [POD], 100.0).troubles == {POD.slot: "expired"}
    assert memory.read(1, [replace(POD, uid="next")], 101.0).troubles == {}


def test_of_several_shards_the_one_that_hears_a_learner_is_believed() -> None:
    memory = Memory(uid="u")
    memory.take([troubled("Lost", "expired"), troubled("Training")], 100.0, "then")
    assert memory.read(2, [POD], 100.0).troubles == {}
    memory.take([troubled("Lost"), troubled("Training", "expired")], 100.0, "then")
    assert memory.read(2, [POD], 100.0).troubles == {POD.slot: "expired"}


def away(state: str, reason: str = "terminated") -> pb.StatusReply:
    slot = pb.SlotStatus(slot=POD.slot, state=f"SLOT_{state.upper()}", reason=reason)
    return pb.StatusReply(state=pb.SHARD_SERVING, slots=[slot])


def test_who_was_told_to_terminate_is_away_until_it_does_more_than_join() -> None:
    memory = Memory(uid="u")
    for at, reply_, seconds in (
        (100.0, away("Training", ""), {}),
        (101.0, away("Left"), {POD.slot: 0.0}),
        (105.0, away("Left"), {POD.slot: 4.0}),
        (106.0, pb.StatusReply(state=pb.SHARD_SERVING), {POD.slot: 5.0}),
        (107.0, away("Joining", ""), {POD.slot: 6.0}),
        (108.0, away("Training", ""), {}),
        (109.0, away("Lost", ""), {}),
        (110.0, away("Left", "ValueError: boom"), {}),
    ):
        memory.take([reply_], at, "then")
        assert memory.read(1, [POD], at).left_seconds == seconds


def test_since_when_a_slot_is_wanted_is_known_of_those_that_came_later() -> None:
    memory = Memory(uid="u")
    assert memory.read(1, [], 100.0, ["a-0"]).wanted_seconds == {}
    assert memory.read(1, [], 110.0, ["a-0", "a-1"]).wanted_seconds == {"a-1": 0.0}
    assert memory.read(0, [], 115.0).wanted_seconds == {"a-1": 5.0}  # a manifest that is not known
    assert memory.read(1, [], 120.0, ["a-0"]).wanted_seconds == {}
    assert memory.read(1, [], 130.0, ["a-0", "a-1"]).wanted_seconds == {"a-1": 0.0}
