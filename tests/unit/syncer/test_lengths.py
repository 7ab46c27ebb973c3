"""A job gets another length while its shards run (rule 27)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.length import Length
from atoll_syncer.model import log
from atoll_syncer.model.effects import Merge, Reply, Tape
from atoll_syncer.rules.ending import LAST_ROUND_SECONDS
from atoll_syncer.rules.status import status
from unit.syncer.shard_side import KEY, RUN, Side, begun, run_file, side, step_all
from unit.syncer.test_ending import STEPS, at_the_end, ended, reach

LONGER = Length(revision=2, steps=STEPS + 9, ends=(STEPS + 9,))


def hear(one: Side, revision: int, steps: int | None = None, tokens: int = 0) -> None:
    """The operator's file has changed."""
    ends = () if steps is None else (steps,)
    told = Length(revision=revision, steps=steps, tokens=tokens, ends=ends)
    one.feed(one.shard.length_heard(told, one.now))


# ------------------------------------------------------------ a longer job


def test_a_longer_job_puts_off_its_end_and_every_session_hears_of_it_rule_27() -> None:
    one, sessions = at_the_end("a-0", "a-1")
    reach(one, sessions)
    one.offer(sessions[0], 0, 9)
    one.sent("tick")
    one.feed(one.shard.length_heard(LONGER, one.now))
    assert not any(each.last or each.deadline for each in one.state.rounds.open.values())
    told = {n: tick.length for n, tick in one.sent("tick")}
    assert [told[n] for n in sessions] == [
        pb.Length(revision=2, steps=STEPS + 9, ends=[STEPS, STEPS + 9])
    ] * 2
    assert status(one.state, one.now).steps == STEPS + 9
    one.wait(60.0)
    assert not one.state.history.ended
    one.feed(one.shard.length_heard(LONGER, one.now))
    assert one.sent("tick") == []  # it is no news any more


def test_a_version_that_was_the_last_gets_a_last_round_at_the_new_end_rule_27() -> None:
    one, sessions = at_the_end("a-0", "a-1")
    reach(one, sessions)
    for session in sessions:
        one.offer(session, 0, 9)
    assert one.state.history.heads[0].last
    assert one.state.rounds.finished == {0}
    one.feed(one.shard.length_heard(LONGER, one.now))
    assert one.state.rounds.finished == set()
    for session in sessions:
        one.report(session, STEPS + 5)
    one.sent("call")
    one.hear_tick(STEPS + 9)
    one.join("b-2", tick_seen=STEPS + 9)
    for session in sessions:
        one.report(session, STEPS + 10)
    assert {number for number, call in one.sent("call") if call.slice == 0} >= set(sessions)
    assert one.state.rounds.open[0].last


def test_what_was_written_as_a_last_version_meanwhile_finishes_no_slice_rule_27() -> None:
    one, sessions = at_the_end("a-0", "a-1")
    reach(one, sessions)
    one.durable = False
    for session in sessions:
        one.offer(session, 0, 9)
    one.feed(one.shard.length_heard(LONGER, one.now))
    one.flush()
    assert 0 not in one.state.rounds.finished


def test_in_lock_step_a_hand_over_at_a_former_end_may_come_rule_15() -> None:
    one, (first,) = begun("a-0", steps=10, overlap=0, lockstep=True, quorum=1)
    hear(one, 1, 100)
    for tick in range(1, 11):
        one.report(first, tick)
    one.offer(first, 0, 10, t_m=10)
    one.offer(first, 1, 10, t_m=10)
    assert one.ends() == []


def test_in_lock_step_the_hand_overs_at_a_longer_end_are_the_last_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", lockstep=True, steps=8)
    step_all(one, sessions, range(1, 9))
    for t_m, steps in ((8, 8), (16, 8)):
        step_all(one, sessions, range(t_m - 7, t_m + 1))
        for fragment in range(2):
            if t_m == 8 and fragment == 1:
                hear(one, 1, 16)  # the first slice has had its last round
            for session in sessions:
                one.offer(session, fragment, steps, t_m=t_m)
    one.wait(0.25)
    assert one.state.history.ended
    assert [head.number for head in one.state.history.heads.values()] == [2, 2]


# ------------------------------------------------------------ a shorter job


def test_a_shard_beyond_a_shorter_length_ends_at_its_tick_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", steps=1000, quorum=2)
    step_all(one, sessions, range(1, 11))
    tick = one.state.clock.tick
    hear(one, 1, 7)
    assert [(n, each.last) for n, each in one.state.rounds.open.items()] == [(1, True), (0, True)]
    assert status(one.state, one.now).steps == 7
    for fragment in range(2):
        for session in sessions:
            one.offer(session, fragment, 2)
    assert one.state.history.ended
    assert one.state.clock.tick == tick
    assert [each.tick for each in one.entries if isinstance(each, log.Ended)] == [tick]
    assert all(head.last for head in one.state.history.heads.values())


def test_before_a_shorter_length_the_job_goes_on_to_it_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", steps=1000)
    step_all(one, sessions, range(1, 5))
    hear(one, 1, STEPS)
    assert not one.state.over
    step_all(one, sessions, range(5, STEPS + 2))
    assert one.state.over


@pytest.mark.parametrize("kind", ["steps", "tokens"])
def test_an_older_revision_says_nothing_rule_27(kind: str) -> None:
    one, _ = begun("a-0", "a-1", steps=1000)
    if kind == "tokens":
        one.state.ending.length = Length(tokens=1000)
    edits = ((3, 100, 100), (2, 5000, 100), (4, 200, 200), (3, 100, 200))
    for number, (revision, length, counts) in enumerate(edits):
        hear(one, revision, **{kind: length})
        known = one.state.ending.length
        assert (known.steps or known.tokens) == counts
        late = one.join(f"b-{number}")
        (welcome,) = [message for session, message in one.sent("welcome") if session == late]
        assert welcome.length.revision == known.revision
    lines = [each.record for each in one.take(Tape) if each.record["event"] == "length"]
    assert [line[kind] for line in lines] == [100, 200]
    hear(one, 5, **{kind: 200})  # an edit of something else
    assert {tick.length.revision for _, tick in one.sent("tick")} >= {5}
    assert [each for each in one.take(Tape) if each.record["event"] == "length"] == []


def test_a_shorter_length_that_is_taken_back_puts_the_end_off_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", steps=1000, quorum=2)
    step_all(one, sessions, range(1, 11))
    hear(one, 1, 5)
    assert one.state.over
    hear(one, 2, 1000)
    assert not one.state.over
    assert not any(each.last for each in one.state.rounds.open.values())
    one.wait(60.0)
    assert not one.state.history.ended


def test_fewer_tokens_than_are_trained_end_the_job_rule_27() -> None:
    one, _ = begun("a-0", steps=STEPS)
    one.state.ending.length = Length(tokens=1000)
    one.state.sessions.tokens = 150
    assert not one.state.over
    hear(one, 1, tokens=100)
    assert one.state.over
    hear(one, 2, tokens=200)
    assert not one.state.over


def lockstep(**more: Any) -> tuple[Side, list[int]]:
    """Two learners of a long job in lock-step at step 9; slices are due at 8, 16 and at 12, 20."""
    one, sessions = begun(
        "a-0", "a-1", overlap=0, lockstep=True, quorum=2, **{"steps": 1000} | more
    )
    for tick in range(1, 10):
        for session in sessions:
            one.report(session, tick, step_seconds=5.0)
        for session in sessions if tick in (4, 8) else ():
            one.offer(session, 1 if tick == 4 else 0, tick, t_m=tick)
    assert [head.number for _, head in sorted(one.state.history.heads.items())] == [1, 1]
    one.effects.clear()
    return one, sessions


@pytest.mark.parametrize("kind", ["steps", "tokens"])
def test_in_lock_step_beyond_the_end_a_slice_is_handed_over_when_it_is_due_next_rule_27(
    kind: str,
) -> None:
    one, sessions = lockstep()
    if kind == "tokens":
        one.state.ending.length, one.state.sessions.tokens = Length(tokens=1000), 500
    hear(one, 1, **{kind: 5})
    began = one.now
    for tick in range(10, 17):
        assert len(one.state.rounds.finished) == (tick > 12)
        one.wait(5.0)
        for session in sessions:
            one.report(session, tick, steps=4, step_seconds=5.0)
        for session in sessions if tick in (12, 16) else ():
            one.offer(session, 1 if tick == 12 else 0, 4, t_m=tick)
    assert one.now > began + LAST_ROUND_SECONDS
    assert [(len(each.participants), each.last) for each in one.take(Merge)] == [(2, True)] * 2
    assert one.state.history.ended


def test_in_lock_step_a_head_beyond_a_shorter_length_still_gets_its_last_round_rule_17() -> None:
    """It was merged as one of many: its last version has all bits."""
    one, sessions = lockstep()
    hear(one, 1, 3)
    for session in sessions:
        one.leave(session)
    one.wait(1.0)
    assert one.state.history.ended
    assert all(head.last for head in one.state.history.heads.values())


def test_in_lock_step_one_that_does_not_come_holds_the_end_up_to_its_deadline_rule_27() -> None:
    one, sessions = lockstep()
    hear(one, 1, 5)
    for _ in range(12):
        one.wait(10.0)
        for session in sessions:
            one.report(session, 9, waiting=True, step_seconds=5.0)
    assert one.state.history.ended


# ------------------------------------------------------------ who hears of it, and when


def test_shards_tell_each_other_the_length_in_hello_rule_27() -> None:
    one, sessions = begun("a-0", "a-1", steps=STEPS)
    one.hear_tick(0, length=LONGER.message())
    reply = one.take(Reply)[-1].message
    assert reply.length == pb.Length(revision=2, steps=STEPS + 9, ends=[STEPS, STEPS + 9])
    assert {session for session, tick in one.sent("tick") if tick.length.steps} == set(sessions)
    other = side(shard=1, job=run_file(shards=2, steps=STEPS)).start()
    other.feed(
        other.shard.answered(pb.HelloReply(run=RUN, key=KEY, length=reply.length), other.now)
    )
    assert other.state.ending.length == one.state.ending.length
    late = one.join("a-2")
    (welcome,) = [message for number, message in one.sent("welcome") if number == late]
    assert welcome.length == reply.length


def test_after_its_end_is_logged_a_shard_stays_at_its_length_rule_27() -> None:
    one, _ = ended()
    assert one.state.history.ended
    for revision, steps in ((2, STEPS + 9), (3, STEPS - 9)):
        hear(one, revision, steps)
        assert one.state.ending.length.steps == STEPS
        assert status(one.state, one.now).steps == STEPS


def test_a_shard_that_starts_beyond_a_shorter_length_ends_there_rule_27() -> None:
    one, _ = ended()
    kept = tuple(each for each in one.entries if not isinstance(each, log.Ended))
    for began in (STEPS + 100, 1):
        file = Length(revision=1, steps=STEPS, ends=(STEPS,))
        again = side(job=run_file(steps=began), entries=kept, length=file).start()
        assert again.state.over
        assert status(again.state, again.now).steps == STEPS
        hear(again, 0, STEPS + 200)  # an old file is read again
        assert again.state.over
    longer = side(job=run_file(steps=STEPS + 100), entries=kept).start()
    assert not longer.state.over
