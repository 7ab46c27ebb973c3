"""Rule 22: a shard whose log has lost entries takes back what they may have named."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from atoll_syncer.model.effects import PublishHead, Reply
from atoll_syncer.rules.status import status
from unit.syncer.recovery_side import asked
from unit.syncer.shard_side import RUN, Side, begun, run_file, side, version


def after_lost_entries(*torn: int) -> Side:
    """The registrar of a run with some versions, restarted on a log with a damaged entry."""
    before, sessions = begun("a-0", "b-0", quorum=2)
    for t_m in range(1, 18):
        before.now += 1.0
        for session in sessions:
            before.report(session, t_m)
        for session, call in before.sent("call"):
            before.offer(session, call.slice, t_m)
    assert before.state.history.commits >= 3
    one = side(entries=tuple(before.entries))
    one.shard.history.lose(1)
    one.shard.history.torn.update(torn)
    one.start()
    one.feed(one.shard.lost(set(), one.now))
    return one


def comes_back(one: Side, slot: str, *above: int) -> int:
    """A learner that holds the heads, or versions so much above them."""
    history = one.state.history
    held = [
        version(n, head.number + above[n], epoch=head.epoch)
        for n, head in sorted(history.heads.items())
    ]
    taken = history.taken[slot]
    fields: dict[str, Any] = {"incarnation": taken.incarnation, "instance": taken.instance}
    return one.join(slot, run=RUN, held=held, epochs_seen=[1], **fields)


def test_a_process_with_lost_entries_begins_above_every_term_that_they_may_have_begun() -> None:
    one = after_lost_entries()
    records = [e for e in one.entries if isinstance(e, log.TermBegun)]
    assert records[-1].epoch == records[-2].epoch + 2


def test_a_version_that_a_lost_entry_named_is_taken_back_and_no_round_opens_before() -> None:
    one = after_lost_entries()
    heads = dict(one.state.history.heads)
    first = comes_back(one, "a-0", 0, 0)
    one.wait(5.0)
    assert not one.state.serving, "b-0 may hold more"
    second = comes_back(one, "b-0", 1, 0)
    one.wait(1.0)
    assert asked(one) == [(second, 0, heads[0].number + 1)]
    wanted = version(0, heads[0].number + 1, epoch=heads[0].epoch)
    one.held(second, wanted)
    one.wait(1.0)
    assert one.state.serving
    assert one.state.history.heads[0].number == heads[0].number + 2
    assert one.state.history.heads[1] == heads[1], "its momentum is kept"
    assert heads[1].merges > 0 == one.state.history.heads[0].merges, "and that one's is fresh"
    assert first in one.state.sessions.open


def test_where_no_learner_holds_more_the_heads_serve_on() -> None:
    one = after_lost_entries()
    heads = dict(one.state.history.heads)
    for slot in ("a-0", "b-0"):
        comes_back(one, slot, 0, 0)
    one.wait(1.0)
    assert asked(one) == []
    assert one.state.serving
    assert one.state.history.heads == heads


def test_a_head_that_serves_on_goes_to_who_joined_meanwhile_without_it() -> None:
    """The process was killed after the entry, before the Publish."""
    one = after_lost_entries()
    behind, holder = comes_back(one, "a-0", -1, 0), comes_back(one, "b-0", 0, 0)
    assert one.take(PublishHead) == []
    one.wait(1.0)
    assert one.state.serving
    assert one.take(PublishHead) == [PublishHead(behind, 0)]
    assert one.state.sessions.open[holder].held == {
        fragment: head.number for fragment, head in one.state.history.heads.items()
    }


def test_a_torn_slice_is_taken_back_from_who_holds_its_head_and_knows_its_lineage() -> None:
    one = after_lost_entries(1)
    head = one.state.history.heads[1]
    sessions = [comes_back(one, slot, 0, 0) for slot in ("a-0", "b-0")]
    one.wait(1.0)
    assert asked(one) == [(sessions[0], 1, head.number)]
    merged = pb.SlotMerged(slot="b-0", incarnation=1, base=head.number - 1, capture=16, cursor=77)
    one.held(sessions[0], version(1, head.number, epoch=head.epoch), lineage=[merged])
    one.wait(1.0)
    assert one.state.serving
    history = one.state.history
    assert (history.heads[1].number, history.torn) == (head.number + 1, set())
    assert [(m.slot, m.capture, m.cursor) for m in history.lineage(1)] == [("b-0", 16, 77)]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_registrar_whose_whole_beginning_is_lost_takes_no_seed_and_lets_no_shard_take_one(
    shards: int,
) -> None:
    """Both snapshots are damaged, and every learner has just started again and holds nothing."""
    one = side(job=run_file(shards=shards))
    one.shard.history.lose(1500)
    later = log.Taken(slot="a-0", incarnation=7, uid="u", instance="i")
    assert one.shard.history.apply_after_loss(later, RUN, 2) == ""
    one.start()
    one.model(one.join("a-0", run=RUN, incarnation=8))
    one.wait(40.0)
    assert one.sent("send_seed") == []
    assert status(one.state, one.now).state == pb.SHARD_FAILED
    assert one.state.history.begun == {0}
    one.take(Reply)
    one.feed(one.shard.registrar_request(1, pb.HelloRequest(shard=1, run=RUN), one.now))
    assert [reply.message.begun for reply in one.take(Reply)] == [True]


def test_the_loss_of_the_first_entries_of_a_job_does_not_keep_it_from_its_start() -> None:
    """Fewer entries than a mark and a version take cannot hide a training."""
    one = side()
    one.shard.history.lose(2)
    one.shard.history.apply_after_loss(log.RunStarted(run=RUN), RUN, 1)
    one.start()
    one.model(one.join("a-0"))
    assert len(one.sent("send_seed")) == 1
