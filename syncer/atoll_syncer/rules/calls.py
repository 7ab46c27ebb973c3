"""A round begins, and learners are called (rules 9, 10, 14): steps 1 and 2 of rounds.py.

Reports move the shard's clock, and every session gets the new tick (rules 7, 8 and 39).

The tick is the K-th largest position of the Training learners (model/roster). Three more things
raise it, and none of them tells how fast learners step: a durable commit (`reach`), a tick that a
joining learner has seen (`catch_up`, which also forgets the rate of the clock), and, in lock-step,
the end of the job (`all_wait_at_the_end`). `move` announces it once, at the end of the input, and
`say_again` once more where it stands.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job import schedule
from atoll_protos.job.schedule import next_due, start_distance
from atoll_syncer.model.effects import Effect, Send
from atoll_syncer.model.roster import CallCredit, Round, Session, Slot, StepCredit
from atoll_syncer.model.state import WAIT_SECONDS, RefusedOffers, ShardState, Standing
from atoll_syncer.rules import offers, publishing

DAMAGED_OFFERS_MAX: Final = 3  # in a row of one slot, until a round does without it

# ------------------------------------------------------------ 1: a round begins


def start_due(state: ShardState, now: float) -> list[Effect]:
    if state.sync.lockstep or state.ending.began_at is not None:
        return []
    effects: list[Effect] = []
    for fragment, due in schedule.starts(state.sync, state.clock.tick, state.rounds.starts):
        open_round = state.rounds.open.get(fragment)
        if open_round is not None and open_round.closed_at is not None:
            continue  # its commit is under way: the round of this tick begins after it
        if open_round is None and not publishing.may_begin(state, fragment):
            continue
        state.rounds.starts[fragment] = due
        if open_round is None:
            effects += begin(state, fragment, due, now)
        else:
            open_round.due = due  # one round, for the newest due tick
    return effects


def begin(state: ShardState, fragment: int, due: int, now: float) -> list[Effect]:
    """Begin a round on the slice's head, with its first Calls."""
    base = state.history.heads[fragment].number
    each = Round(slice=fragment, due=due, base=base, opened_at=now)
    state.rounds.open[fragment] = each
    return [] if state.sync.lockstep else call(state, each, now)


def begin_last(
    state: ShardState, fragment: int, due: int, deadline: float, now: float
) -> list[Effect]:
    """Begin a slice's last round, or make the open one it; no K, no distance of rule 9."""
    effects: list[Effect] = []
    if fragment not in state.rounds.open:
        effects += begin(state, fragment, due, now)
    each = state.rounds.open[fragment]
    each.last, each.deadline = True, deadline
    if not state.sync.lockstep:
        effects += call(state, each, now)
    return effects


def put_off_last(state: ShardState) -> None:
    """Make last rounds ordinary ones: the job has become longer, and none is finished.

    One that closed with nothing was none: its slice is due again.
    """
    for fragment in state.rounds.finished:
        state.rounds.starts[fragment] = state.history.due.get(fragment, 0)
    state.rounds.finished.clear()
    for each in state.rounds.open.values():
        each.last, each.deadline = False, None


# ------------------------------------------------------------ 2: learners are called


def call(
    state: ShardState, each: Round, now: float, only: Slot | None = None, *, newcomers: bool = False
) -> list[Effect]:
    """Every usable learner that has no Call of this round, or `only` that one of them."""
    effects: list[Effect] = []
    slots = state.sessions.slots.values() if only is None else [only]
    uncalled = [slot for slot in slots if slot.name not in each.called]
    for slot in sorted(uncalled, key=attrgetter("name")):
        if slot.name in each.refused or slot.session is None:
            continue
        if not offers.usable(state, slot, each, now):
            continue
        if newcomers and not offers.is_newcomer(state, slot):
            continue
        session = state.sessions.open[slot.session]
        coming = session.receiving.get(each.slice)
        if coming is not None and coming.head.HasField("offer"):
            continue
        each.called[slot.name] = now
        session.credits[each.slice] = CallCredit(base=each.base, called_at=now, t_m=slot.report.t_m)
        message = pb.Call(slice=each.slice, base=each.base, due=each.due)
        effects.append(Send(session.number, pb.ToLearner(call=message)))
    return effects


def spend_credit(sender: Session, fragment: int) -> CallCredit | None:
    return sender.credits.pop(fragment, None)


def refused(state: ShardState, slot: str, fragment: int, reason: str, *, final: bool) -> None:
    """Its round does without it if it is `final`, or damaged on its way too often (rule 11)."""
    count = note_refused(state, slot, reason)
    each = state.rounds.open.get(fragment)
    if each is not None and (final or count >= DAMAGED_OFFERS_MAX):
        each.refused.add(slot)


def note_refused(state: ShardState, slot: str, reason: str) -> int:
    """How many offers of a slot in a row were refused, until one of them is merged."""
    before = state.rounds.refused.get(slot)
    count = 1 if before is None else before.count + 1
    state.rounds.refused[slot] = RefusedOffers(reason=reason, count=count)
    return count


NOTE_SECONDS: Final = 1.0
SILENT_SECONDS_MAX: Final = 0.75  # looked at four times a second: at most a second
FASTER_THAN_OWN_MAX: Final = 4.0  # than its mean step: a script may slow down and speed up
USUAL_SECONDS_MAX: Final = 64.0  # else one that claims long steps would slow all others down
FASTER_THAN_OTHERS_MAX: Final = 64.0  # than the median: one job may have all kinds of machines


def advance(state: ShardState, slot: str, steps: int, now: float) -> None:
    """Count a slot's new steps while it is Training, as far as they can have been done.

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
    """Return the last position in lock-step at which all versions waited for are there."""
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
    """Send the tick, also an old one: a silent shard is taken for gone (rule 44)."""
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
    tick = min(tick, state.ending.length.claims_max)
    if tick > state.clock.tick:
        state.clock.raise_to(tick)
        if not state.sync.lockstep:
            state.clock.take_in()
        state.clock.times.clear()


def _announce(state: ShardState, now: float) -> list[Effect]:
    state.clock.announced, state.clock.announced_at = state.clock.tick, now
    message = pb.ToLearner(tick=pb.Tick(tick=state.clock.tick))
    return [Send(number, message) for number in state.sessions.welcomed]
