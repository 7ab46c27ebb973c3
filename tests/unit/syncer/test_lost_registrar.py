"""Rule 2: a registrar without its store carries on with the run that learners and shards know."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import NOBODY, Expected
from atoll_protos.run import Region
from atoll_syncer.model.effects import Ask, Reply
from unit.syncer.recovery_side import empty_shard
from unit.syncer.shard_side import RUN, Side, run_file, side, version


def test_a_registrar_without_a_store_carries_on_with_the_run_that_learners_hold() -> None:
    one = side(fresh=False).start()
    fields: dict[str, Any] = {"run": "old", "incarnation": 4, "held": [version(0, 9, run="old")]}
    one.join("a-0", **fields)
    assert one.sent("welcome") == []
    one.wait(29.0)
    assert one.state.history.run == ""
    one.wait(2.0)
    assert one.state.history.run == "old"
    assert one.state.history.begun == {0}
    assert one.state.history.taken["a-0"].incarnation == 4
    assert one.state.recovery is not None


LEARNERS = Expected(regions=(Region(name="a", learners=2), Region(name="b", learners=2)))


def of_run(one: Side, slot: str, run: str, number: int = 9, **fields: Any) -> None:
    """A learner that holds versions of a run joins."""
    held = [version(0, number, run=run)]
    one.join(slot, instance=f"{slot} in {run}", run=run, held=held, **fields)


@pytest.mark.parametrize("expected", [LEARNERS, NOBODY])
@pytest.mark.parametrize("first", [True, False])
def test_the_run_that_most_learners_hold_is_carried_on_not_that_of_one(
    expected: Expected, first: bool
) -> None:
    """[A learner that names a smaller run would throw away what all others hold.]"""
    one = side(fresh=False, expected=expected).start()
    said = [("b-0", "a-false", 90), ("a-0", "true", 4), ("a-1", "true", 3)]
    for slot, run, number in said if first else said[::-1]:
        of_run(one, slot, run, incarnation=number)
    one.wait(31.0)
    assert one.state.history.run == "true"
    assert {slot: each.incarnation for slot, each in one.state.history.taken.items()} == {
        "a-0": 4,
        "a-1": 3,
    }, "what is said of another run counts for nothing"
    assert one.state.history.begun == {0}


def test_learners_that_the_job_does_not_have_do_not_outnumber_those_that_it_has() -> None:
    one = side(fresh=False, expected=LEARNERS).start()
    for number in range(7, 12):
        of_run(one, f"b-{number}", "a-false")
    of_run(one, "a-0", "true")
    one.wait(31.0)
    assert one.state.history.run == "true"


def test_one_slot_counts_once_however_often_it_joins() -> None:
    one = side(fresh=False).start()
    for _ in range(5):
        of_run(one, "b-0", "a-false")
    of_run(one, "a-0", "true")
    of_run(one, "a-1", "true")
    one.wait(31.0)
    assert one.state.history.run == "true"


def test_what_one_learner_alone_holds_is_not_thrown_away() -> None:
    one = side(fresh=False, expected=LEARNERS).start()
    for slot in ("a-0", "a-1", "b-0"):
        one.join(slot)
    of_run(one, "b-1", "old")
    assert one.state.history.run == "old"


def test_the_log_of_another_shard_is_believed_before_all_learners() -> None:
    one = side(fresh=False, job=run_file(shards=3)).start()
    for slot in ("a-0", "a-1", "b-0"):
        of_run(one, slot, "a-false", incarnation=50)
    taken = [pb.SlotTaken(slot="b-1", incarnation=6, uid="uid", instance="b-1")]
    for request in (
        pb.HelloRequest(shard=1, run="true", tick=9, taken=taken),
        pb.HelloRequest(shard=2, empty=True, named=[pb.RunNamed(run="a-false", slot="b-0")]),
    ):
        one.feed(one.shard.registrar_request(1, request, one.now))
    one.wait(31.0)
    assert one.state.history.run == "true"
    assert one.state.history.taken.keys() == {"b-1"}
    assert one.state.history.begun == {0, 1, 2}


def test_what_learners_say_to_an_empty_shard_counts_at_the_registrar() -> None:
    one = side(fresh=False, job=run_file(shards=2)).start()
    of_run(one, "b-0", "a-false")
    named = [pb.RunNamed(run="true", slot=slot) for slot in ("a-0", "a-1")]
    request = pb.HelloRequest(shard=1, empty=True, named=named)
    one.feed(one.shard.registrar_request(1, request, one.now))
    one.wait(31.0)
    assert one.state.history.run == "true"


def test_a_registrar_mints_only_when_no_run_is_held_and_every_shard_has_said_hello() -> None:
    one = side(fresh=False, job=run_file(shards=2)).start()
    one.wait(60.0)
    assert one.state.history.run == ""
    request = pb.HelloRequest(shard=1, empty=True)
    one.feed(one.shard.registrar_request(1, request, one.now))
    one.wait(1.0)
    assert one.state.history.run == RUN


def test_a_shard_tells_the_registrar_which_run_and_incarnations_it_knows() -> None:
    one = empty_shard("a-0")
    one.join("a-0", incarnation=6)
    one.take(Ask)
    one.wait(2.5)
    requests = [ask.request for ask in one.take(Ask) if isinstance(ask.request, pb.HelloRequest)]
    assert [(t.slot, t.incarnation) for t in requests[0].taken] == [("a-0", 6)]
    registrar = side(fresh=False, job=run_file(shards=2)).start()
    registrar.feed(registrar.shard.registrar_request(1, requests[0], registrar.now))
    assert len(registrar.take(Reply)) == 1
    registrar.wait(31.0)
    assert registrar.state.history.taken["a-0"].incarnation == 6


def test_a_new_process_gets_no_incarnation_before_it_is_known_which_there_were() -> None:
    one = side(fresh=False).start()
    fields: dict[str, Any] = {"run": "old", "incarnation": 1}
    held = [version(n, 9, run="old") for n in range(2)]
    holder = one.join("b-0", **{**fields, "held": held})
    one.wait(31.0)
    one.model(holder)
    one.join("a-0")
    assert [end.code for end in one.ends()] == [pb.NOT_READY]
    merged = pb.SlotMerged(slot="a-0", incarnation=5, base=8, capture=3, cursor=7)
    for fragment in range(2):
        one.wait(31.0)
        one.held(holder, version(fragment, 9, run="old"), lineage=[merged])
    one.wait(1.0)
    one.join("a-0")
    assert one.state.history.taken["a-0"].incarnation == 6
