"""Rule 2: a registrar without its store carries on with the run that learners and shards know."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Ask, Reply
from unit.syncer.recovery_side import empty_shard
from unit.syncer.shard_side import RUN, run_file, side, version


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
