"""Reports move the shard's clock, and every session gets the new tick (rules 7 and 8).

Every Training learner has a position, which grows by the steps that it reports. The tick is the
K-th largest position and never goes back: K learners have really done that many steps. When the
set of Training learners changes, and every H ticks, positions are drawn into [t-1, t+H], so that
the loss of a leader does not stop the clock and a slow learner counts again later.

Three more things raise the tick, and none of them tells how fast learners step: a durable commit
(`reach`), a tick that a joining learner has seen on another shard (`jump`, which also forgets
the rate of the clock), and, in lock-step, the end of the job (see `all_wait_at_the_end`).
Whatever moved it, `move` announces it once, at the end of the input.
"""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Effect, Send
from atoll_syncer.model.state import Standing, State


def advance(state: State, slot: str, steps: int) -> None:
    """A slot reports new steps; they count while it is Training.

    In lock-step a learner that was away for more than a round takes its position from the tick.
    That jump is no work: counted as steps, it would drive the tick, and so other learners' jumps.
    """
    positions = state.clock.positions
    if slot not in positions:
        return
    if state.sync.lockstep and steps > state.sync.period:
        reached = state.sessions.slots[slot].report.t_m
        steps = min(steps, max(0, reached - positions[slot]))
    state.clock.advance(slot, steps)


def move(state: State, standing: Standing, now: float) -> list[Effect]:
    """The tick follows the positions of the Training learners; sessions get a new one."""
    state.clock.set_training(standing.training)
    if all_wait_at_the_end(state, standing):
        state.clock.raise_to(state.ending.length.end or 0)
    if state.clock.update(standing.quorum):
        state.clock.times.append((now, state.clock.tick))
    return _announce(state)


def all_wait_at_the_end(state: State, standing: Standing) -> bool:
    """In lock-step no learner steps beyond T: if a hand-over there was lost, no other will come."""
    end, slots = state.ending.length.end, state.sessions.slots
    if not state.sync.lockstep or end is None or not standing.training:
        return False
    reports = [slots[name].report for name in standing.training]
    return all(report.waiting and report.t_m >= end for report in reports)


def reach(state: State, tick: int) -> None:
    """To the tick of a durable commit."""
    state.clock.raise_to(tick)


def jump(state: State, tick: int) -> None:
    """To a tick that was seen on another shard; it says nothing about this clock's rate."""
    if tick > state.clock.tick:
        state.clock.raise_to(tick)
        state.clock.times.clear()


def _announce(state: State) -> list[Effect]:
    if state.clock.tick <= state.clock.announced:
        return []
    state.clock.announced = state.clock.tick
    message = pb.ToLearner(tick=pb.Tick(tick=state.clock.tick))
    return [Send(number, message) for number in state.sessions.welcomed]
