"""What a shard keeps of its learners is what they would answer, and a report asks few of them."""

import random
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Quorum
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


def cost_of_a_report(learners: int, offered: int, **sync: Any) -> float:
    """The mean over two steps of all, while a round waits for those that have not offered."""
    names, due = [f"a-{n}" for n in range(learners)], 4
    one, sessions = begun(*names, steps=1000, **sync)
    known: dict[str, Any] = {} if offered else {"slices": []}  # who holds nothing is not called
    ticks = range(1, due + 1 + ("lockstep" not in sync))  # a clock of reports begins at -1
    step_all(one, sessions, ticks, **known)
    for session in sessions[:offered]:
        one.offer(session, 1, due, t_m=due)
    assert one.state.rounds.open[1].closed_at is None
    total = 0
    for t_m in (due + 2, due + 3):
        one.now += 0.1
        for session in sessions:
            message = one.progress(t_m, waiting=True)
            total += instructions(partial(one.shard.message, session, message, one.now))
    assert len(one.state.rounds.open[1].complete) == offered
    return total / (2 * learners)


@pytest.mark.parametrize(
    ("offered", "sync"),
    [(FEW - 1, {}), (2, {}), (0, {"quorum": 2}), (2, LOCKSTEP)],
    ids=["in the grace, most have offered", "most are missing", "before the quorum", "lock-step"],
)
def test_a_report_costs_as_much_among_many_learners_as_among_few(
    offered: int, sync: dict[str, Any]
) -> None:
    few, many = (
        cost_of_a_report(learners, learners - 1 if offered == FEW - 1 else offered, **sync)
        for learners in (FEW, MANY)
    )
    assert many < 1.25 * few
