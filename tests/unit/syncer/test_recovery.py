"""Rule 22: a shard that lost committed data takes it back from its learners."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.run import Fragments
from atoll_syncer.model import log
from atoll_syncer.model.effects import Accept, Merge, PublishHead, Tape
from atoll_syncer.rules.status import status
from unit.syncer.recovery_side import asked, empty_shard, held_by, hello
from unit.syncer.shard_side import KEY, RUN, begun, digest, run_file, side, step_all, version


@pytest.mark.parametrize("fragments", [2, Fragments.AUTO])
def test_every_slice_is_taken_back_also_where_only_the_model_says_how_many_there_are(
    fragments: int | Fragments,
) -> None:
    one = empty_shard("a-0", "b-0", fragments=fragments)
    first = held_by(one, "a-0", 9)  # it has died half-way through its first adoptions
    one.wait(31.0)
    assert asked(one) == [(first, 0, 9)]
    one.held(first, version(0, 9))
    one.wait(1.0)
    assert not one.state.serving
    assert "slices 1" in status(one.state, one.now).reason
    second = held_by(one, "b-0", 9, 8)
    one.wait(1.0)
    assert asked(one) == [(second, 1, 8)]
    one.held(second, version(1, 8))
    one.wait(1.0)
    assert one.state.serving
    assert one.state.sync.fragment_count == 2


@pytest.mark.parametrize(("encoding", "taken"), [(pb.BF16, True), (pb.F32, True), (pb.INT8, False)])
def test_a_held_version_comes_as_a_base_does_or_in_f32_as_a_last_one_does(
    encoding: pb.Encoding, taken: bool
) -> None:
    one = empty_shard("a-0")
    session = held_by(one, "a-0", 9, 8)
    one.wait(1.0)
    assert asked(one) == [(session, 0, 9)]
    transfer = pb.Transfer(held=pb.Held(version=version(0, 9)), encoding=encoding)
    one.ends()
    one.feed(one.shard.transfer_started(session, transfer, one.now))
    assert [each.byte_count for each in one.take(Accept)] == [
        8 * (4 if encoding == pb.F32 else 2)
    ] * taken
    assert [end.code for end in one.ends()] == [pb.BAD_TRANSFER] * (not taken)


def test_an_empty_store_of_a_shard_that_had_begun_takes_no_seed() -> None:
    one = empty_shard("a-0")
    session = one.join("a-0", incarnation=1)
    one.model(session)
    one.wait(5.0)
    assert one.sent("send_seed") == []
    assert one.state.recovery is not None


def test_no_seed_is_asked_for_before_the_registrar_has_said_that_it_has_not_begun() -> None:
    started = log.RunStarted(run=RUN, key=KEY)
    one = side(shard=1, job=run_file(shards=2), entries=(started,)).start()
    one.model(one.join("a-0", incarnation=1))
    assert one.sent("send_seed") == []
    hello(one, "a-0", begun=False)
    assert len(one.sent("send_seed")) == 1


def test_every_slot_that_is_alive_at_the_registrar_joins_first() -> None:
    one = empty_shard("a-0", "b-0")
    held_by(one, "a-0", 9, 9)
    one.wait(5.0)
    assert asked(one) == []
    assert "waits for b-0" in status(one.state, one.now).reason
    second = held_by(one, "b-0", 10, 9)
    one.wait(1.0)
    assert asked(one)[0] == (second, 0, 10)


def test_a_learner_that_was_told_to_dial_again_is_waited_for_as_well() -> None:
    """Its session at the registrar has just ended, so the registrar does not name it."""
    one = empty_shard("a-0")
    first = one.join("b-0", incarnation=1, run=RUN, epochs_seen=[1, 7])
    assert first not in one.state.sessions.open, "the shard begins a higher epoch"
    held_by(one, "a-0", 9, 9, epoch=7)
    one.wait(5.0)
    assert asked(one) == []
    second = held_by(one, "b-0", 10, 9, epoch=7)
    one.wait(1.0)
    assert asked(one)[0] == (second, 0, 10)


def test_after_30_seconds_it_goes_on_with_those_who_are_there() -> None:
    one = empty_shard("a-0", "b-0")
    first = held_by(one, "a-0", 9, 8)
    one.wait(29.0)
    assert asked(one) == []
    one.wait(2.0)
    assert asked(one) == [(first, 0, 9)]


def test_a_value_comes_back_as_its_number_plus_one_and_rounds_open_when_all_have() -> None:
    one = empty_shard("a-0")
    first = held_by(one, "a-0", 9, 8)
    one.wait(1.0)
    one.held(first, version(0, 9))
    assert not one.state.serving
    one.wait(1.0)
    one.held(first, version(1, 8))
    one.wait(1.0)
    heads = one.state.history.heads
    assert {n: (h.number, h.digest) for n, h in heads.items()} == {
        0: (10, digest(0, 9)),
        1: (9, digest(1, 8)),
    }
    recovered = [e for e in one.entries if isinstance(e, log.Committed)]
    assert all(e.recovered and not e.participants and e.epoch == 2 for e in recovered)
    assert recovered[0].tensors
    assert one.state.serving
    assert one.state.clock.tick == 40
    assert {(e.session, e.slice) for e in one.take(PublishHead)} == {(first, 0), (first, 1)}
    said = status(one.state, one.now)
    assert (said.state, said.recovered) == (pb.SHARD_SERVING, 2)
    lines = [t.record for t in one.take(Tape) if t.record.get("recovered")]
    assert [line["version"] for line in lines] == [10, 9]


def test_the_highest_number_wins_and_among_equals_the_later_epoch() -> None:
    one = empty_shard("a-0", "a-1", "b-0")
    held_by(one, "a-0", 7, 5, epoch=3)
    held_by(one, "a-1", 9, 5, epoch=1)
    third = held_by(one, "b-0", 9, 4, epoch=2)
    one.wait(1.0)
    assert asked(one)[0] == (third, 0, 9)


def test_when_the_best_dies_the_next_best_is_asked() -> None:
    one = empty_shard("a-0", "b-0")
    best, second = held_by(one, "a-0", 9, 9), held_by(one, "b-0", 8, 9)
    one.wait(1.0)
    assert (best, 0, 9) in asked(one)
    one.leave(best)
    hello(one, "b-0")
    one.wait(1.0)
    assert (second, 0, 8) in asked(one)


def test_values_with_another_digest_end_the_session_and_a_third_time_is_the_last() -> None:
    one = empty_shard("a-0", "b-0")
    held_by(one, "a-0", 9, 9)
    second = held_by(one, "b-0", 8, 8)
    for _ in range(3):
        one.wait(1.0)
        session = next(s for s, fragment, number in asked(one) if (fragment, number) == (0, 9))
        transfer = pb.Transfer(held=pb.Held(version=version(0, 9)), encoding=pb.BF16)
        one.feed(one.shard.transfer_started(session, transfer, one.now))
        one.feed(one.shard.transfer_rejected(session, "digest", one.now, transfer))
        assert session not in one.state.sessions.open
        held_by(one, "a-0", 9, 9)
    one.wait(1.0)
    assert (second, 0, 8) in asked(one)


def test_one_that_does_not_answer_gives_way_after_a_while() -> None:
    one = empty_shard("a-0", "b-0")
    silent, other = held_by(one, "a-0", 9, 0), held_by(one, "b-0", 8, 0)
    for _ in range(3):
        one.wait(31.0)
    assert asked(one)[0] == (silent, 0, 9)
    one.wait(31.0)
    assert one.state.recovery is not None
    assert one.state.recovery.asked[0].holder.session == other


def test_a_held_version_that_was_not_asked_for_ends_its_session() -> None:
    one = empty_shard("a-0", "b-0")
    held_by(one, "a-0", 9, 9)
    second = held_by(one, "b-0", 8, 8)
    one.wait(1.0)
    one.held(second, version(0, 8))
    assert [end.code for end in one.ends()][-1] == pb.BAD_TRANSFER
    assert one.state.history.heads == {}


def test_a_joiner_above_the_head_shows_a_loss_and_no_session_gets_the_older_head() -> None:
    one, sessions = begun("a-0", "a-1")
    one.take(PublishHead)
    later = held_by(one, "b-0", 5, 0, epoch=0)
    assert one.state.recovery is not None
    assert [e for e in one.take(PublishHead) if e.slice == 0] == []
    assert one.shard.publish(sessions[0], 0) is None
    assert one.shard.publish(sessions[0], 1) is not None
    one.wait(1.0)
    assert asked(one) == [(later, 0, 5)]
    one.held(later, version(0, 5, epoch=0))
    assert one.state.history.heads[0].number == 6
    assert one.state.history.heads[1].number == 0
    assert one.state.recovery is None


def test_a_holder_that_never_comes_back_leaves_the_head_in_service() -> None:
    one, _ = begun("a-0", "a-1")
    later = held_by(one, "b-0", 5, 0, epoch=0)
    one.leave(later)
    one.wait(31.0)
    assert one.state.recovery is None
    assert one.state.history.heads[0].number == 0
    again = held_by(one, "b-0", 5, 0, epoch=0)
    one.wait(31.0)
    assert (again, 0, 5) in asked(one)


def test_open_rounds_of_what_is_lost_go_and_others_wait() -> None:
    one, sessions = begun("a-0", "a-1", quorum=2)
    step_all(one, sessions, range(1, 10))
    assert sorted(one.state.rounds.open) == [0, 1]
    one.offer(sessions[0], 0, 8)
    one.offer(sessions[0], 1, 8)
    held_by(one, "b-0", 5, 0, epoch=0)
    assert sorted(one.state.rounds.open) == [1]
    one.offer(sessions[1], 1, 8)
    one.wait(2.0)
    assert one.take(Merge) == []


def test_a_begun_shard_whose_versions_no_learner_holds_has_failed_with_a_remedy() -> None:
    one = empty_shard("a-0")
    one.model(one.join("a-0", incarnation=1))
    one.wait(29.0)
    assert status(one.state, one.now).state == pb.SHARD_RECOVERING
    one.wait(2.0)
    said = status(one.state, one.now)
    assert said.state == pb.SHARD_FAILED
    assert "StoreLost" in said.reason
    assert "restore" in said.reason
    one.join("b-0", incarnation=1)
    (end,) = one.ends()
    assert (end.code, end.remedy) == (
        pb.STORE_LOST,
        "restore from a checkpoint, or start a new job",
    )


def test_a_holder_that_comes_after_the_failure_ends_it() -> None:
    one = empty_shard("a-0")
    one.model(one.join("a-0", incarnation=1))
    one.wait(31.0)
    assert one.state.failed
    late = held_by(one, "b-0", 3, 3)
    one.wait(1.0)
    one.held(late, version(0, 3))
    one.wait(1.0)
    one.held(late, version(1, 3))
    one.wait(1.0)
    assert status(one.state, one.now).state == pb.SHARD_SERVING


def test_the_first_to_come_after_a_long_time_does_not_end_the_job() -> None:
    one = empty_shard("a-0", "b-0")
    one.wait(60.0)
    one.model(one.join("a-0", incarnation=1))
    one.wait(1.0)
    assert not one.state.failed
    second = held_by(one, "b-0", 3, 3)
    one.wait(1.0)
    assert asked(one) == [(second, 0, 3)]


def test_without_a_learner_it_waits_and_says_so() -> None:
    one = empty_shard()
    one.wait(100.0)
    said = status(one.state, one.now)
    assert said.state == pb.SHARD_RECOVERING
    assert not one.state.failed


def seeded_log(*more: log.Entry) -> tuple[log.Entry, ...]:
    one, _ = begun("a-0")
    return (*one.entries, *more)


def test_an_object_that_is_gone_comes_back_above_the_head() -> None:
    one = side(entries=seeded_log()).start()
    one.feed(one.shard.lost({1}, one.now))
    fields: dict[str, Any] = {"incarnation": 1, "run": RUN, "held": [version(0, 0), version(1, 0)]}
    session = one.join("a-0", instance="a-0-process", **fields)
    one.wait(1.0)
    assert asked(one) == [(session, 1, 0)]
    one.held(session, version(1, 0))
    assert one.state.history.heads[1].number == 1
    assert one.state.history.heads[0].number == 0
    assert one.state.serving


def test_what_a_version_holds_of_every_slot_comes_back_with_it() -> None:
    """Rules 13 and 28: its learners hear what was merged, and cursors go on."""
    one = empty_shard("a-0")
    session = held_by(one, "a-0", 9, 8)
    one.wait(1.0)
    merged = pb.SlotMerged(slot="a-0", incarnation=1, base=8, capture=3, cursor=77)
    merged.trained.CopyFrom(pb.Trained(incarnation=1, before=40, now=30, said=31))
    one.held(session, version(0, 9), lineage=[merged])
    publish = one.shard.publish(session, 0)
    assert publish is not None
    assert (publish.merged.incarnation, publish.merged.base, publish.merged.capture) == (1, 8, 3)
    assert list(publish.lineage) == [merged]
    assert one.state.history.cursors == {"a-0": 77}


def test_another_value_of_the_same_number_is_not_called() -> None:
    one, (first, second) = begun("a-0", "a-1")
    other = pb.SliceProgress(slice=0, held=0, since=pb.Counters(steps=8, tokens=8), digest="f" * 16)
    for t_m in range(1, 10):
        one.now += 1.0
        one.report(first, t_m, slices=[other])
        one.report(second, t_m)
    called = {session for session, call in one.sent("call") if call.slice == 0}
    assert called == {second}


@pytest.mark.parametrize("seen", [1, 4])
def test_a_term_begins_above_an_epoch_that_another_process_had_rule_20(seen: int) -> None:
    one = empty_shard()
    one.join("a-0", incarnation=1, run=RUN, epochs_seen=[0, seen])
    assert [end.code for end in one.ends()] == [pb.NOT_READY]
    assert one.state.history.epoch == seen + 1
    assert one.join("a-0", incarnation=1, run=RUN, epochs_seen=[0, seen]) in one.state.sessions.open
