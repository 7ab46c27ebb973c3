"""A round opens when its slice is due, and closes into a merge (rules 9, 11, 15)."""

import dataclasses

from atoll_syncer.model import clock
from atoll_syncer.model.effects import Effect, Merge
from atoll_syncer.model.round import Round, decide
from atoll_syncer.model.state import State
from atoll_syncer.rules import calls


def start_due(state: State, now: float) -> list[Effect]:
    """Rounds that the clock makes due; in modes that wait the hand-overs open them."""
    if state.sync.lockstep or state.ending_at is not None:
        return []
    effects: list[Effect] = []
    for fragment, due in clock.starts(state.sync, state.clock.tick, state.starts):
        state.starts[fragment] = due
        open_round = state.rounds.get(fragment)
        if open_round is None:
            effects += begin(state, fragment, due, now)
        elif open_round.closed_at is None:
            open_round.due = due  # one round, for the newest due tick
    return effects


def begin(state: State, fragment: int, due: int, now: float, *, last: bool = False) -> list[Effect]:
    """A round on the head, and its first Calls."""
    base = state.history.heads[fragment].number
    each = Round(slice=fragment, due=due, base=base, opened_at=now, last=last)
    state.rounds[fragment] = each
    return [] if state.sync.lockstep else calls.call(state, each, now)


def look_at_all(state: State, now: float) -> list[Effect]:
    """Every open round, by slice."""
    return [effect for fragment in sorted(state.rounds) for effect in look(state, fragment, now)]


def look(state: State, fragment: int, now: float) -> list[Effect]:
    """Call who has become usable, and close when it is time."""
    each = state.rounds[fragment]
    if each.closed_at is not None or not state.serving:
        return []
    quorum = state.quorum(now)
    if state.sync.lockstep:  # rule 15: all hand over
        quorum = max(1, len(calls.awaited(state, each, now) | each.complete.keys()))
    effects: list[Effect] = []
    if not state.sync.lockstep and len(each.complete) < quorum and not each.last:
        effects += calls.call(state, each, now)
    if each.quorum_at is None and len(each.complete) >= quorum:  # K fell: a learner was lost
        each.quorum_at, each.grace_seconds = now, state.grace_seconds
    awaited = calls.awaited(state, each, now)
    decision = decide(each, awaited=awaited, quorum=quorum, now=now)
    if not decision.close:
        return effects
    return [*effects, *_close(state, each, decision.reason, now)]


def _close(state: State, each: Round, reason: str, now: float) -> list[Effect]:
    if not each.complete:
        assert each.last, "only a last round may close with nothing"
        del state.rounds[each.slice]
        state.done.add(each.slice)
        return []
    each.closed_at, each.reason = now, reason
    waited = (each.quorum_at or now) - each.opened_at
    state.timings = dataclasses.replace(state.timings, quorum=state.timings.quorum.add(waited))
    return [Merge(each.slice, each.participants)]
