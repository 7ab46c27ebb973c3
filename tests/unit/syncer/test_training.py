"""What a shard keeps of its learners is what they would answer, and a report asks few of them."""

import random
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.run import Quorum
from atoll_syncer.model.grace import step_seconds
from unit.syncer.shard_side import Side, begun, step_all

LOCKSTEP: dict[str, Any] = {"lockstep": True, "quorum": Quorum.ALL, "grace": False}
MANY, FEW = 64, 8


# ------------------------------------------------------------ what is kept


def check_kept(one: Side) -> None:
    """Everything that is counted from input to input, counted again."""
    state, slots = one.state, one.state.sessions.slots
    training = {name for name, each in slots.items() if each.state(one.now) == pb.SLOT_TRAINING}
    assert state.standing(one.now).training == training
    means = sorted(slots[name].report.step_seconds for name in training)
    assert state.sessions.training.step_seconds == means
    assert state.sessions.tokens == sum(each.tokens for each in slots.values())
    clock = state.clock
    if clock.ahead is not None:
        assert clock.ahead == sum(position > clock.tick for position in clock.positions.values())


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sync", [{"quorum": 2}, LOCKSTEP], ids=["ticks", "lock-step"])
def test_what_is_kept_of_the_learners_is_what_they_would_answer_rules_6_and_8(
    seed: int, sync: dict[str, Any]
) -> None:
    drawn = random.Random(seed)
    names = [f"a-{n}" for n in range(5)]
    one, sessions = begun(*names, **sync)
    steps = dict.fromkeys(names, 0)
    at = dict(zip(names, sessions, strict=True))
    for _ in range(250):
        name = drawn.choice(names)
        one.now += drawn.choice([0.0, 0.0, 0.1, 0.4, 1.5])
        match drawn.choice(["step", "step", "step", "step", "stand", "time", "leave", "wait"]):
            case "leave" if at[name] in one.instances:
                one.leave(at[name])
            case _ if at[name] not in one.instances:
                at[name], steps[name] = one.join(name, instance=f"{name}-{one.count}"), 0
            case "time":
                one.feed(one.shard.tick_time(one.now))
            case does:
                steps[name] += 0 if does == "stand" else drawn.choice([1, 1, 1, 3])
                mean = drawn.choice([0.0, 0.2, 1.0, 3.0])
                fields: dict[str, Any] = {"step_seconds": mean, "tokens": 10 * steps[name]}
                training = drawn.random() < 0.95
                waits = does == "wait"
                one.report(at[name], steps[name], training=training, waiting=waits, **fields)
        check_kept(one)


def test_who_makes_no_step_is_stalled_although_nothing_is_heard_of_it_rule_6() -> None:
    one, (still, moves) = begun("a-0", "a-1")
    for t_m in range(1, 4):
        one.now += 1.0
        one.report(moves, t_m)
    one.now += 0.5
    one.report(moves, 4)
    assert one.state.standing(one.now).training == {"a-1"}
    assert step_seconds(one.state.sessions.training.step_seconds) == 1.0
    one.report(still, 1)
    assert one.state.standing(one.now).training == {"a-0", "a-1"}


def test_who_learns_of_a_tick_by_the_report_of_another_is_called_rule_10() -> None:
    """[It was too far ahead of this shard's clock; the report that moves it is not its own.]"""
    one, (first, second) = begun("a-0", "a-1", quorum=2)
    far = 4 * one.state.sync.period
    step_all(one, [first, second], range(1, 5))
    one.effects.clear()
    one.now += 1.0
    one.report(second, 5, tick_seen=far + 5)
    assert one.state.clock.tick < 5
    one.report(first, 5)
    assert one.state.clock.tick == 5 - 1
    calls = {session for session, _ in one.sent("call")}
    one.now += 1.0
    one.report(second, 6, tick_seen=far + 5)
    one.report(first, 6)
    calls |= {session for session, _ in one.sent("call")}
    assert calls == {first, second}


def test_an_offer_that_is_taken_back_has_others_called_in_its_place_rule_11() -> None:
    """The round had its quorum, so nobody else was called any more."""
    one, (first, second, third) = begun("a-0", "a-1", "b-0")
    step_all(one, [first, third], range(1, 6))
    assert {session for session, _ in one.sent("call")} == {first, third}
    one.offer(first, 1, 5)
    one.report(second, 1, waiting=True)
    one.leave(first)
    assert not one.sent("call")  # the quorum is 1, and the grace waits for the third
    one.join("a-0", instance="a-0-again")
    one.report(third, 5)
    assert [session for session, _ in one.sent("call")] == [second]


# ------------------------------------------------------------ what it costs


def instructions(call: Callable[[], object]) -> int:
    """Instructions of Python that a call executes: as many on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def cost_of_a_report(learners: int, **sync: Any) -> float:
    """The mean over two steps of all, while a round waits for the last one of them."""
    names, due = [f"a-{n}" for n in range(learners)], 4
    one, sessions = begun(*names, steps=1000, **sync)
    step_all(one, sessions, range(1, due + 1 + (not sync)))  # a clock of reports begins at -1
    for session in sessions[:-1]:
        one.offer(session, 1, due, t_m=due)
    assert one.state.rounds.open[1].closed_at is None
    total = 0
    for t_m in (due + 2, due + 3):
        one.now += 0.1
        for session in sessions:
            message = report(one, t_m)
            total += instructions(partial(one.shard.message, session, message, one.now))
    assert len(one.state.rounds.open[1].complete) == learners - 1
    return total / (2 * learners)


def report(one: Side, t_m: int) -> pb.ToShard:
    since = pb.Counters(steps=t_m, tokens=10 * t_m)
    slices = [
        pb.SliceProgress(slice=n, held=h.number, since=since, digest=h.digest[:16])
        for n, h in sorted(one.state.history.heads.items())
    ]
    fields: dict[str, Any] = {"t_m": t_m, "step_seconds": 1.0, "training": True, "waiting": True}
    return pb.ToShard(report=pb.Report(slices=slices, **fields))


@pytest.mark.parametrize("sync", [{}, LOCKSTEP], ids=["ticks", "lock-step"])
def test_a_report_costs_as_much_among_many_learners_as_among_few(sync: dict[str, Any]) -> None:
    few, many = cost_of_a_report(FEW, **sync), cost_of_a_report(MANY, **sync)
    assert many < 1.25 * few
