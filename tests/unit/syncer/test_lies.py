"""What one peer says that is not true: its session ends, or nobody believes it (38, 39)."""

from collections.abc import Callable
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import Expected
from atoll_protos.names import COUNTER_MAX
from atoll_protos.run import Region
from atoll_syncer.model.effects import Ask, EndSession
from atoll_syncer.model.log import Committed
from atoll_syncer.model.recovery import ENDS_MAX
from atoll_syncer.rules.status import status
from atoll_syncer.rules.validation import AHEAD_MAX, VERSION_MAX
from unit.syncer.shard_side import KEY, RUN, Side, begun, run_file, side, step_all, version

BIG = 2**64 - 1
LONG = "x" * 16
Peer = tuple[Side, list[int]]


def drive(
    one: Side, sessions: list[int], ticks: range, lie: Callable[[], Any] = lambda: None
) -> int:
    """Honest learners step once a second and answer every Call; returns the new commits."""
    before = sum(isinstance(entry, Committed) for entry in one.entries)
    for t_m in ticks:
        step_all(one, sessions, range(t_m, t_m + 1))
        lie()
        one.feed(one.shard.tick_time(one.now))
        for session, call in one.sent("call"):
            if session in sessions:
                one.offer(session, call.slice, t_m)
        one.effects = [each for each in one.effects if isinstance(each, EndSession)]
    return sum(isinstance(entry, Committed) for entry in one.entries) - before


def trained(*slots: str, **sync: Any) -> Peer:
    one, sessions = begun(*slots, steps=100_000, **sync)
    assert drive(one, sessions[:-1], range(1, 17))
    one.ends()
    return one, sessions


def restarted(one: Side) -> Side:
    """The next process reads the log, and a learner trains with it."""
    after = side(entries=tuple(one.entries), job=one.job, fresh=False).start()
    session = after.join("a-0", instance="new", run=RUN)
    after.report(session, 0)
    assert session in after.state.sessions.open
    status(after.state, after.now)
    return after


def codes(one: Side) -> list[str]:
    return [pb.Code.Name(end.code) for end in one.ends()]


PROGRESS = [
    pb.SliceProgress(slice=7, held=1),
    pb.SliceProgress(slice=0, held=VERSION_MAX + 1, digest=LONG),
    pb.SliceProgress(slice=0, since=pb.Counters(steps=1, tokens=BIG)),
    pb.SliceProgress(slice=0, digest="x" * 10_000),
]
REPORTS: list[dict[str, Any]] = [
    *({"slices": [each]} for each in PROGRESS),
    {"slices": [pb.SliceProgress(), pb.SliceProgress()]},
    {"t_m": BIG},
    {"tokens": BIG},
    {"tokens": 10, "late": 11},
    {"cursor": COUNTER_MAX + 1},
    {"tick_seen": BIG},
    {"epochs_seen": [1, 1]},
    {"step_seconds": float("nan")},
    {"publish_seconds": float("inf")},
    {"busy_share": -1.0},
    {"trouble": "x" * 100_000},
]


@pytest.mark.parametrize("fields", REPORTS, ids=str)
def test_a_report_that_cannot_be_true_ends_its_session_and_nothing_else_rule_38(
    fields: dict[str, Any],
) -> None:
    one, (first, liar) = trained("a-0", "b-0")
    entries = len(one.entries)
    one.report(liar, **{"t_m": 1, "steps": 1, **fields})
    assert codes(one) == ["BAD_MESSAGE"]
    assert len(one.entries) == entries
    assert one.state.recovery is None
    assert drive(one, [first], range(17, 33)) >= 2
    restarted(one)


JOINS: list[dict[str, Any]] = [
    {"epochs_seen": [BIG]},
    {"epochs_seen": [AHEAD_MAX + 2]},
    {"epochs_seen": [1] * 100},
    {"incarnation": BIG},
    {"tick_seen": BIG},
    {"cursor": BIG},
    {"held": [version(7, 1)]},
    {"held": [version(0, 1), version(0, 2)]},
    {"held": [version(0, VERSION_MAX + 1)]},
    {"uid": "x" * 10_000},
]


@pytest.mark.parametrize("fields", JOINS, ids=str)
@pytest.mark.parametrize("observer", [False, True])
def test_a_join_that_cannot_be_true_is_refused_and_leaves_nothing_rule_38(
    fields: dict[str, Any], observer: bool
) -> None:
    one, (first, liar) = trained("a-0", "b-0")
    one.leave(liar)
    entries, tick = len(one.entries), one.state.clock.tick
    one.join("b-0", instance="liar", run=RUN, observer=observer, **fields)
    assert codes(one) == ["BAD_MESSAGE"]
    assert (len(one.entries), one.state.clock.tick) == (entries, tick)
    assert drive(one, [first], range(17, 33)) >= 2
    restarted(one)


def test_a_slot_begins_a_higher_term_once_rule_38() -> None:
    one, (first, liar) = trained("a-0", "b-0")
    one.leave(liar)
    for n in range(10):
        session = one.join("b-0", instance=f"liar {n}", run=RUN, epochs_seen=[1_000 * (n + 1)])
        one.leave(session)
    assert one.state.history.epoch == 1_001
    assert drive(one, [first], range(17, 33)) >= 2


def test_an_incarnation_far_above_those_known_locks_no_slot_rule_38() -> None:
    one = side(shard=1, job=run_file(shards=2), fresh=False).start()
    one.feed(one.shard.answered(pb.HelloReply(run=RUN, key=KEY), one.now))
    one.join("a-1", instance="liar", run=RUN, incarnation=BIG)
    assert codes(one) == ["BAD_MESSAGE"]
    right = one.join("a-1", instance="right", run=RUN, incarnation=1)
    assert right in one.state.sessions.open


def test_a_long_name_of_a_slot_is_no_number_of_many_digits_rule_38() -> None:
    one, _ = trained("a-0", "b-0")
    one.join("b-" + "9" * 400)
    one.join("b-" + "9" * 5_000)
    assert codes(one) == ["UNKNOWN_SLOT", "BAD_MESSAGE"]
    assert one.state.run.heard == {"a-0", "b-0"}


def test_tokens_of_many_instances_never_leave_their_field_rule_38() -> None:
    one, sessions = begun("a-0", "b-0", steps=100_000)
    for number in range(3):
        one.report(sessions[1], 1, tokens=COUNTER_MAX)
        one.leave(sessions[1])
        sessions[1] = one.join("b-0", instance=f"b-0-{number}")
    assert status(one.state, one.now).slots[1].tokens == COUNTER_MAX
    restarted(one)


# ------------------------------------------------------------ versions (rule 22)


def test_a_version_that_never_comes_delays_commits_once_rule_22() -> None:
    one, (first, second, liar) = trained("a-0", "a-1", "b-0")
    honest = [first, second]

    def lie() -> None:
        if liar in one.state.sessions.open:
            held = [pb.SliceProgress(slice=n, held=10**6, digest=LONG) for n in range(2)]
            one.report(liar, 1, slices=held)

    drive(one, honest, range(17, 217), lie)
    assert codes(one) == ["BAD_MESSAGE"]
    assert one.state.recovery is None
    liar = one.join("b-0", instance="another")
    assert drive(one, honest, range(217, 317), lie) >= 20, "its slot is believed no more"


def test_a_claim_without_a_digest_begins_no_recovery_rule_22() -> None:
    one, (_, liar) = trained("a-0", "b-0")
    one.report(liar, 1, slices=[pb.SliceProgress(slice=0, held=10**6)])
    assert one.state.recovery is None


def test_nobody_holds_a_version_of_a_shard_that_has_never_begun_rule_22() -> None:
    one = side().start()
    honest = one.join("a-0")
    one.join("b-0", run=RUN, held=[version(0, 5)])
    assert one.state.recovery is None
    one.model(honest)
    one.seed(honest)
    one.report(honest, 0)
    assert drive(one, [honest], range(1, 17))


LINEAGES = [
    [pb.SlotMerged(slot="a-0", incarnation=BIG)],
    [pb.SlotMerged(slot="a-0", incarnation=1, cursor=BIG)],
    [pb.SlotMerged(slot="a-0"), pb.SlotMerged(slot="a-0")],
    [pb.SlotMerged(slot="no slot")],
]


@pytest.mark.parametrize("lineage", LINEAGES, ids=str)
def test_a_lineage_that_cannot_be_true_is_not_taken_rule_38(lineage: list[Any]) -> None:
    one, (first, liar) = trained("a-0", "b-0")
    one.report(liar, 1, slices=[pb.SliceProgress(slice=0, held=50, digest=LONG)])
    one.wait(1)
    (asked,) = [session for session, _ in one.sent("send_held")]
    one.held(asked, version(0, 50, name="e" * 64), lineage=lineage)
    assert codes(one) == ["BAD_TRANSFER"]
    assert not any(each.recovered for each in one.entries if isinstance(each, Committed))
    one.wait(31)
    assert drive(one, [first], range(17, 33)) >= 2


def test_a_held_version_of_a_number_near_the_largest_is_not_taken_rule_38() -> None:
    one, (_, liar) = trained("a-0", "b-0")
    one.report(liar, 1, slices=[pb.SliceProgress(slice=0, held=50, digest=LONG)])
    one.wait(1)
    one.held(liar, version(0, BIG, name="e" * 64))
    assert codes(one) == ["BAD_TRANSFER"]


# ------------------------------------------------------------ the clock (rule 39)


@pytest.mark.parametrize("seconds", [1.0, 1e-6])
def test_one_report_moves_the_clock_by_a_period_at_most_rule_39(seconds: float) -> None:
    one, (_, liar) = trained("a-0", "b-0")
    tick = one.state.clock.tick
    for t_m in (100_000, 200_000, 300_000):
        one.report(liar, t_m, step_seconds=seconds)
    assert tick <= one.state.clock.tick <= tick + one.state.sync.period


def test_steps_count_up_to_64_times_as_fast_as_the_median_rule_39() -> None:
    one, sessions = trained("a-0", "a-1", "b-0")
    tick = one.state.clock.tick
    for n in range(1, 101):
        one.now += 0.1
        for session in sessions[:2]:
            one.report(session, 16 + n // 10)
        one.report(sessions[2], 1_000_000 * n, step_seconds=1e-6)
    assert tick + 500 < one.state.clock.tick <= tick + 10 * 64 + one.state.sync.period


def test_steps_count_up_to_4_times_as_fast_as_a_learner_says_itself_rule_39() -> None:
    one, sessions = trained("a-0", "a-1", "b-0")
    fast = sessions[1]
    step_all(one, sessions[:2], range(17, 18))
    tick = one.state.clock.tick
    one.now += 1.5
    one.report(fast, 1_000, step_seconds=0.1)
    assert 60 <= one.state.clock.tick - tick <= 60 + one.state.sync.period


def test_time_that_was_not_used_allows_a_period_at_most_rule_39() -> None:
    one, (first,) = begun("a-0", steps=100_000)
    step_all(one, [first], range(1, 41))
    one.report(first, 10_000)
    assert one.state.clock.tick <= 40 + one.state.sync.period


def test_steps_of_a_report_that_was_held_up_count_rule_39() -> None:
    one, (first,) = begun("a-0", steps=100_000)
    step_all(one, [first], range(1, 5))
    one.now += 2.5
    one.report(first, 6)
    one.report(first, 13)
    assert one.state.clock.tick == 12


def test_in_lock_step_nobody_passes_the_next_hand_over_rule_39() -> None:
    one, (first, liar) = begun("a-0", "b-0", steps=1000, overlap=1, lockstep=True)
    step_all(one, [first], range(1, 4))
    one.report(liar, 500)
    assert one.state.clock.tick == 5, "slice 1 is due at 4"
    for session in (first, liar):
        one.report(session, 4)
        one.offer(session, 1, 4, t_m=4)
    assert one.state.history.heads[1].number == 1
    one.report(liar, 501)
    assert one.state.clock.tick <= 9


def test_in_lock_step_a_learner_that_is_alone_does_not_end_the_job_rule_39() -> None:
    """One that says that it waits at the end, where all others are not there at this moment."""
    one, (first, liar) = begun("a-0", "b-0", steps=1000, overlap=1, lockstep=True)
    one.leave(first)
    one.report(liar, 1000, waiting=True)
    assert one.state.clock.tick <= 5, "slice 1 is due at 4"


def test_a_learner_that_never_gives_what_it_claims_is_believed_ten_times_rule_22() -> None:
    one, (first, liar) = trained("a-0", "b-0")
    for n in range(20):
        held = [pb.SliceProgress(slice=0, held=10**6 + n, digest=LONG)]
        one.report(liar, 1, slices=held)
        one.wait(1)
        one.leave(liar)
        liar = one.join("b-0")
    assert len(one.sent("send_held")) == ENDS_MAX
    assert one.state.recovery is None
    one.wait(31)
    assert drive(one, [first], range(17, 33)) >= 2


def test_in_lock_step_an_offer_counts_for_no_tick_that_nobody_has_reached_rule_39() -> None:
    one, (_, liar) = begun("a-0", "b-0", steps=1000, overlap=1, lockstep=True)
    one.report(liar, 500)
    one.offer(liar, 0, 500, t_m=496)
    assert codes(one) == ["BAD_TRANSFER"]


def test_a_joiners_tick_counts_when_another_shard_confirms_it_rule_39() -> None:
    one, _ = trained("a-0", "b-0")
    tick = one.state.clock.tick
    one.join("b-1", run=RUN, tick_seen=90_000)
    one.wait(31)
    assert one.state.clock.tick == tick
    one.hear_tick(tick + 30)
    one.wait(1)
    assert one.state.clock.tick == tick + 30


def test_after_a_restart_a_tick_counts_that_most_learners_have_seen_rule_39() -> None:
    before, _ = trained("a-0", "a-1", "b-0")
    expected = Expected(regions=(Region(name="a", learners=2), Region(name="b", learners=1)))
    entries = tuple(before.entries)
    one = side(entries=entries, job=before.job, fresh=False, expected=expected).start()
    tick = one.state.clock.tick
    one.join("b-0", run=RUN, incarnation=1, tick_seen=90_000)
    one.wait(60)
    assert one.state.clock.tick == tick
    one.join("a-0", run=RUN, incarnation=1, tick_seen=tick + 40)
    one.wait(1)
    assert one.state.clock.tick == tick + 40


def test_a_learner_that_is_new_after_a_loss_is_not_most_of_them_rule_39() -> None:
    before, sessions = begun("a-0", steps=100_000)
    assert drive(before, sessions, range(1, 17))
    one = side(entries=tuple(before.entries), job=before.job, fresh=False).start()
    one.feed(one.shard.lost({0}, one.now))
    tick = one.state.clock.tick
    one.join("b-1", run=RUN, tick_seen=90_000, held=[version(0, 1)])
    one.wait(29)
    assert one.state.clock.tick == tick


def test_an_observer_names_no_run_rule_2() -> None:
    one = side(fresh=False).start()
    one.join("", observer=True, instance="eye", run="another")
    one.join("a-0", run="their run")
    one.wait(31)
    assert one.state.history.run == "their run"


# ------------------------------------------------------------ calls


CALLS = [
    pb.HelloRequest(shard=1, tick=BIG),
    pb.HelloRequest(shard=1, length=pb.Length(revision=BIG)),
    pb.HelloRequest(shard=1, length=pb.Length(ends=[BIG])),
    pb.HelloRequest(shard=2),
    pb.HelloRequest(shard=1, run_hash="another"),
    pb.HelloRequest(shard=1, taken=[pb.SlotTaken(slot="a-0", incarnation=BIG)]),
    pb.HelloRequest(shard=1, taken=[pb.SlotTaken(slot="nowhere-0", incarnation=1)]),
    pb.MarkBegunRequest(shard=7),
    pb.MarkBegunRequest(run="x" * 10_000),
    pb.ReportFinalRequest(file="../elsewhere"),
    pb.ReportFinalRequest(shard=9, file="parts/x"),
    pb.SetOwnerRequest(slot="no slot"),
    pb.SetOwnerRequest(slot="a-0", word=BIG),
]


@pytest.mark.parametrize("request_", CALLS, ids=str)
def test_a_call_that_cannot_be_true_is_refused_rule_38(request_: Any) -> None:
    one = side(job=run_file(shards=2)).start()
    if isinstance(request_, pb.HelloRequest) and not request_.run_hash:
        request_.run_hash = one.job.hash
    assert one.shard.objection(request_)


def test_calls_that_can_be_true_are_not_refused() -> None:
    one = side(job=run_file(shards=2)).start()
    other = side(shard=1, job=one.job, fresh=False).start()
    (hello,) = [each.request for each in other.effects if isinstance(each, Ask)]
    part = pb.ReportFinalRequest(shard=1, file="parts/run-shard-001.safetensors")
    owner = pb.SetOwnerRequest(slot="a-0", uid="pod")
    for request in (hello, pb.MarkBegunRequest(shard=1, run=RUN), part, owner):
        assert one.shard.objection(request) == ""
