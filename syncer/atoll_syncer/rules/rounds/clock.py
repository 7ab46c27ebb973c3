"""Reports move the shard's clock, and every session gets the new tick (rules 7, 8 and 39).

The tick is the K-th largest position of the Training learners (model/clock). Three more things
raise it, and none of them tells how fast learners step: a durable commit (`reach`), a tick that a
joining learner has seen (`catch_up`, which also forgets the rate of the clock), and, in lock-step,
the end of the job (`all_wait_at_the_end`). `move` announces it once, at the end of the input, and
`say_again` once more where it stands.
"""

from bisect import bisect_right
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.schedule import next_due, start_distance
from atoll_syncer.model.clock import StepCredit
from atoll_syncer.model.effects import Effect, Send
from atoll_syncer.model.recovery import WAIT_SECONDS
from atoll_syncer.model.state import ShardState, Standing

NOTE_SECONDS: Final = 1.0
SILENT_SECONDS_MAX: Final = 0.75  # looked at four times a second: at most a second
FASTER_THAN_OWN_MAX: Final = 4.0  # than its mean step: a script may slow down and speed up
USUAL_SECONDS_MAX: Final = 64.0  # else one that claims long steps would slow all others down
FASTER_THAN_OTHERS_MAX: Final = 64.0  # than the median: one job may have all kinds of machines


def advance(state: ShardState, slot: str, steps: int, now: float) -> None:
    """A slot reports new steps; they count while it is Training, as far as they can have been done.

    In lock-step the jump of a learner that was away is no work: counted as steps, it would drive
    the tick, and so other learners' jumps.
    """
    clock, period = state.clock, state.sync.period
    report = state.sessions.slots[slot].report
    if not state.sync.lockstep:
        clock.reached[slot] = report.reached
    if slot not in clock.positions:
        return
    position = clock.positions[slot]
    if not state.sync.lockstep:
        credit = clock.credits.setdefault(slot, StepCredit(steps=period, at=now))
        steps = credit.spend(steps, now, _shortest_step(state, report), period)
    else:
        if steps > period:
            steps = min(steps, max(0, report.t_m - position))
        steps = min(steps, max(0, _farthest(state) - position))
    clock.advance(slot, steps)


def _shortest_step(state: ShardState, report: pb.Report) -> float:
    """In which time nobody makes a step (rule 39); 0 while no step time is known."""
    usual = state.clock.step_seconds
    if not usual:
        return 0.0
    return max(
        report.step_seconds / FASTER_THAN_OWN_MAX,
        min(usual, USUAL_SECONDS_MAX) / FASTER_THAN_OTHERS_MAX,
    )


def _farthest(state: ShardState) -> int:
    """The last position in lock-step at which nobody waits for a version that is not there yet."""
    newest = max(state.rounds.starts.values(), default=0)
    first = max(newest, start_distance(state.sync) - 1)
    return state.sync.overlap + min(next_due(state.sync, p, first) for p in state.fragments)


def _note_steps(state: ShardState, now: float) -> None:
    """How long steps usually take, by the upper median; looked at once a second."""
    clock, means = state.clock, state.sessions.training.step_seconds
    if clock.step_seconds and now < clock.steps_noted_at + NOTE_SECONDS:
        return
    unknown = bisect_right(means, 0.0)
    clock.step_seconds = means[(unknown + len(means)) // 2] if unknown < len(means) else 0.0
    clock.steps_noted_at = now


def catch_up(state: ShardState, now: float) -> None:
    """To a tick that joining learners have seen, as far as it is confirmed (rule 39).

    It may be confirmed later than the learner joins, so this is asked again and again.
    """
    recovery = state.recovery
    if recovery is None and not state.history.heads:
        return
    here = [each for each in state.sessions.open.values() if each.welcomed and each.slot]
    seen = sorted(each.join.tick_seen for each in here)
    if not seen or seen[-1] <= state.clock.tick:
        return
    jump(state, min(seen[-1], max(state.run.ticks.values(), default=0)))
    if state.clock.commits:
        return
    asked = recovery.alive if recovery is not None else None
    if asked is None or now - state.run.started_at >= WAIT_SECONDS:
        asked = state.expected.slots
    if not asked and now - state.run.started_at < WAIT_SECONDS:
        asked = frozenset(state.history.taken)
    learners = len(asked | {each.slot for each in here})
    if len(seen) > learners // 2:
        jump(state, seen[-(learners // 2 + 1)])


def move(state: ShardState, standing: Standing, now: float) -> list[Effect]:
    _note_steps(state, now)
    state.clock.set_training(standing.training)
    if all_wait_at_the_end(state, standing):
        state.clock.raise_to(state.ending.length.steps or 0)
    if state.clock.update(standing.quorum):
        state.clock.times.append((now, state.clock.tick))
    return _announce(state, now) if state.clock.tick > state.clock.announced else []


def say_again(state: ShardState, now: float) -> list[Effect]:
    """The tick, also where it stands: who hears nothing takes this shard for gone (rule 44)."""
    if now - state.clock.announced_at < SILENT_SECONDS_MAX:
        return []
    return _announce(state, now)


def all_wait_at_the_end(state: ShardState, standing: Standing) -> bool:
    """In lock-step no learner steps beyond T: if a hand-over there was lost, no other will come."""
    end, slots = state.ending.length.steps, state.sessions.slots
    if not state.sync.lockstep or end is None or not standing.training:
        return False
    if _farthest(state) < end:
        return False
    reports = (slots[name].report for name in standing.training)
    return all(report.waiting and report.t_m >= end for report in reports)


def reach(state: ShardState, tick: int, *, own: bool = True) -> None:
    """To the tick of a durable commit; `own`: of a round of this process."""
    state.clock.raise_to(tick)
    state.clock.commits += own


def jump(state: ShardState, tick: int) -> None:
    """To a tick that was missed; it says nothing about this clock's rate."""
    if tick > state.clock.tick:
        state.clock.raise_to(tick)
        if not state.sync.lockstep:
            state.clock.take_in()
        state.clock.times.clear()


def _announce(state: ShardState, now: float) -> list[Effect]:
    state.clock.announced, state.clock.announced_at = state.clock.tick, now
    message = pb.ToLearner(tick=pb.Tick(tick=state.clock.tick))
    return [Send(number, message) for number in state.sessions.welcomed]
