"""Whom a round calls, and for whom it waits (rules 10, 14, 15)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Effect, Send
from atoll_syncer.model.roster import Slot
from atoll_syncer.model.round import Round
from atoll_syncer.model.state import State
from atoll_syncer.rules import publishing


def usable(state: State, slot: Slot, each: Round, now: float) -> bool:
    """Rule 10: Training, holds the current base, at least one step since; rule 14."""
    progress, head = slot.steps_since(each.slice), state.history.heads[each.slice]
    return (
        slot.state(now) == pb.SLOT_TRAINING
        and progress is not None
        and publishing.is_version(progress, head)
        and progress.since.steps >= 1
        and slot.report.tick_seen <= state.clock.tick + 4 * state.sync.period
    )


def call(state: State, each: Round, now: float) -> list[Effect]:
    """Every usable learner that has no Call of this round."""
    effects: list[Effect] = []
    for name, slot in sorted(state.slots.items()):
        if name in each.called or slot.session is None or not usable(state, slot, each, now):
            continue
        session = state.sessions[slot.session]
        receiving = session.receiving
        if receiving is not None and receiving.offer.slice == each.slice:
            continue
        each.called[name] = now
        session.credits[each.slice] = each.base
        message = pb.Call(slice=each.slice, base=each.base, due=each.due)
        effects.append(Send(session.number, pb.ToLearner(call=message)))
    return effects


def awaited(state: State, each: Round, now: float) -> frozenset[str]:
    """Those whose offers may still come and count."""
    training = state.training(now)
    if state.sync.lockstep:
        return frozenset(
            name
            for name in training
            if name in each.complete or may_hand_over(state.slots[name], each)
        )
    return frozenset(
        name
        for name in each.called
        if name in training and (each.last or not state.is_too_slow(state.slots[name]))
    )


def may_hand_over(slot: Slot, each: Round) -> bool:
    """In lock-step: whether this learner's position has not passed the round's due tick.

    Nobody waits for one that has passed it: it may itself wait, for another slice (rule 15).
    """
    position, progress = slot.report.t_m, slot.steps_since(each.slice)
    if position == each.due:
        return progress is not None and progress.since.steps >= 1
    return position < each.due
