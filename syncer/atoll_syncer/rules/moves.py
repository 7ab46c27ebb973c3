"""What an input makes possible: the steps that follow from the State and the time alone.

After an input has changed the part of the State that it is about, `move` does all that may have
become possible, whichever input it was: take back what is lost, move the clock, begin last rounds,
begin rounds that are due, close rounds whose time has come, log the end. It computes the `Standing`
(who trains, quorum, grace) once and passes it down. What follows from a report does not grow with
the number of learners, but for the one report that moves the tick.
"""

from atoll_syncer.model.effects import Effect, EndSession
from atoll_syncer.model.roster import Slot
from atoll_syncer.model.state import State
from atoll_syncer.rules import clock, companions, ending, recovery, rounds, sessions


def move(state: State, now: float, only: Slot | None = None) -> list[Effect]:
    """What is lost, the clock, the end, rounds that are due, rounds that may close.

    With `only` the input was a report of this slot. As long as it moves neither the tick nor the
    set of learners in training, no other slot is asked for what has become possible.
    """
    back = without_ended(state, recovery.move(state, now))
    if not state.serving or state.history.ended:
        return back
    standing = state.standing(now)
    moved = clock.move(state, standing, now)
    if only is not None and rounds.has_seen(state, standing):
        begun = ending.last_rounds(state, standing, now)
    else:
        only = None
        begun = [*ending.last_rounds(state, standing, now), *rounds.start_due(state, now)]
    looked = rounds.look_at_all(state, standing, now, only)
    return [*back, *moved, *begun, *looked, *ending.end_when_finished(state)]


def export(state: State, now: float) -> list[Effect]:
    """A companion that nobody sends any more is asked for elsewhere, or given up."""
    companions.time_passed(state, now)
    return [*companions.ask(state), *ending.index_when_whole(state)]


def deadlines(state: State) -> list[float]:
    """When open rounds close at the latest, whatever comes."""
    found: list[float] = []
    for each in state.rounds.open.values():
        if each.closed_at is None and state.serving:
            if each.deadline is not None:
                found.append(each.deadline)
            elif each.quorum_at is not None and not state.sync.lockstep:
                found.append(each.quorum_at + each.grace_seconds)
    return found


def without_ended(state: State, effects: list[Effect]) -> list[Effect]:
    """A session that these effects end counts no more from now on (rule 5).

    Its streams may stay open for seconds, and what it has sent may still be on its way or under
    examination. None of that counts; its Calls die, and are made again to its successor.
    """
    for each in [each for each in effects if isinstance(each, EndSession)]:
        effects = [*effects, *sessions.ended(state, each)]
    return effects
