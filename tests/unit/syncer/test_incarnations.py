"""What shows a shard that the registrar has given an incarnation (rule 5)."""

from collections.abc import Callable
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.effects import Reply
from atoll_syncer.rules.incarnations import made
from unit.syncer.shard_side import KEY, RUN, Side, run_file, side

LIAR: dict[str, Any] = {"instance": "liar", "run": RUN}
RIGHT: dict[str, Any] = {"instance": "right", "uid": "right", "run": RUN}


def another_shard(key: str = KEY) -> Side:
    """Shard 1, to which the registrar has told its run and its key."""
    one = side(shard=1, job=run_file(shards=2), fresh=False).start()
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=key), one.now))
    return one


def told_by(registrar: Side) -> pb.HelloReply:
    """What the registrar answers another shard."""
    registrar.take(Reply)
    registrar.hear_tick(0)
    (reply,) = registrar.take(Reply)
    assert isinstance(reply.message, pb.HelloReply)
    return reply.message


def test_the_proof_of_the_registrars_welcome_opens_the_other_shards() -> None:
    registrar = side(job=run_file(shards=2)).start()
    registrar.join("a-1", **RIGHT)
    ((_, welcome),) = registrar.sent("welcome")
    one = another_shard(told_by(registrar).key)
    session = one.join("a-1", **RIGHT, incarnation=welcome.incarnation, proof=welcome.proof)
    assert one.state.sessions.open[session].welcomed
    assert [each.proof for _, each in one.sent("welcome")] == [""], "only the registrar gives one"


def of_nobody(join: pb.Join) -> str:
    return ""


def of_another_slot(join: pb.Join) -> str:
    return made(KEY, RUN, pb.Join(slot="a-0", instance="liar"), join.incarnation)


def of_another_instance(join: pb.Join) -> str:
    return made(KEY, RUN, pb.Join(slot=join.slot, instance="right"), join.incarnation)


def of_another_number(join: pb.Join) -> str:
    return made(KEY, RUN, join, 1)


def of_another_key(join: pb.Join) -> str:
    return made("another", RUN, join, join.incarnation)


def of_no_key(join: pb.Join) -> str:
    return made("", RUN, join, join.incarnation)


def of_another_run(join: pb.Join) -> str:
    return made(KEY, "another", join, join.incarnation)


FALSE = [
    of_nobody,
    of_another_slot,
    of_another_instance,
    of_another_number,
    of_another_key,
    of_no_key,
    of_another_run,
]


@pytest.mark.parametrize("false", FALSE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("known", [True, False])
def test_an_incarnation_that_nothing_proves_locks_no_slot(
    false: Callable[[pb.Join], str], known: bool
) -> None:
    """[Else a learner shuts another one of its region out for good.]"""
    one = another_shard()
    if known:
        one.join("a-1", **RIGHT, incarnation=1)
    join = pb.Join(slot="a-1", instance="liar", incarnation=3)
    entries = len(one.entries)
    for _ in range(3):
        one.join("a-1", **LIAR, incarnation=3, proof=false(join))
    assert [(end.code, end.retry) for end in one.ends()] == [(pb.NOT_READY, True)] * 3
    assert len(one.entries) == entries
    right = one.join("a-1", **RIGHT, incarnation=1)
    assert one.state.sessions.open[right].welcomed
    newer = one.join("a-1", instance="newer", uid="right", run=RUN, incarnation=2)
    assert one.state.sessions.open[newer].welcomed


def test_a_shard_without_a_key_takes_no_incarnation() -> None:
    one = another_shard("")
    false = of_no_key(pb.Join(slot="a-1", instance="liar", incarnation=3))
    one.join("a-1", **LIAR, incarnation=3, proof=false)
    assert [end.code for end in one.ends()] == [pb.NOT_READY]


def test_a_shard_that_starts_again_needs_no_registrar_to_see_a_proof() -> None:
    before = another_shard()
    before.join("a-0", instance="a", run=RUN, incarnation=1)
    one = side(shard=1, job=before.job, entries=tuple(before.entries), fresh=False).start()
    session = one.join("a-1", **RIGHT, incarnation=4)
    assert one.state.sessions.open[session].welcomed


def test_who_is_known_comes_back_without_a_proof() -> None:
    one = another_shard()
    one.leave(one.join("a-1", **RIGHT, incarnation=1))
    session = one.join("a-1", **RIGHT, incarnation=1, proof="")
    assert one.state.sessions.open[session].welcomed


def test_a_registrar_keeps_its_key_over_restarts() -> None:
    first = side(job=run_file(shards=2)).start()
    again = side(job=first.job, entries=tuple(first.entries))
    again.state.run.key = "of another process"
    assert told_by(again.start()).key == told_by(first).key == KEY


def test_a_registrar_that_has_lost_its_key_gives_another_and_both_count() -> None:
    one = another_shard()
    entry = log.RunStarted(run=RUN)
    registrar = side(job=one.job, entries=(entry,))
    registrar.state.run.key = "of another process"
    reply = told_by(registrar.start())
    one.feed(one.shard.answered(reply, one.now))
    new = made(reply.key, RUN, pb.Join(slot="a-1", instance="right"), 2)
    session = one.join("a-1", **RIGHT, incarnation=2, proof=new)
    assert one.state.sessions.open[session].welcomed
    session = one.join("a-0", instance="of the former registrar", run=RUN, incarnation=7)
    assert one.state.sessions.open[session].welcomed
