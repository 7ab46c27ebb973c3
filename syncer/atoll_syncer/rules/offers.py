"""An offer's credit, and what becomes of it once it is whole (rules 10-13)."""

import dataclasses

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Drop, Effect, Stage, Tape
from atoll_syncer.model.log import Participant
from atoll_syncer.model.roster import Session
from atoll_syncer.model.round import Round, weight
from atoll_syncer.model.state import State
from atoll_syncer.rules import merging


def objection(state: State, sender: Session, offer: pb.Offer) -> str:
    """Why an offer may not come; empty when it may."""
    if offer.capture < 1 or offer.counters.steps != offer.capture:
        return f"slice {offer.slice}: an offer of {offer.capture} steps"
    if state.sync.lockstep:
        head = state.history.heads.get(offer.slice)
        ahead = not state.is_lost(offer.slice) and (head is None or offer.base > head.number)
        return f"slice {offer.slice}: base {offer.base} is not there" if ahead else ""
    if sender.credits.get(offer.slice) != offer.base:
        return f"slice {offer.slice}: an offer on base {offer.base} that nobody called for"
    return ""


def completed(state: State, sender: Session, offer: pb.Offer, now: float) -> list[Effect]:
    """It counts for its round, in place of an older one of its slot; or it is late."""
    part = _participant(state, sender.slot, offer)
    fits = _is_on_the_head(state, offer)
    if state.sync.lockstep and offer.slice not in state.rounds and fits:
        merging.begin(state, offer.slice, offer.t_m, now)
    each = state.rounds.get(offer.slice)
    if each is not None:
        _note_transfer(state, each, part.slot, now)
    if each is None or each.closed_at is not None or each.base != offer.base or not fits:
        state.late += 1
        record = {"event": "late", "slot": part.slot, "slice": offer.slice, "base": part.base}
        return [Tape({**record, "capture": part.capture, "tokens": part.tokens})]
    effects: list[Effect] = []
    if part.slot in each.complete:  # rule 13: the newest complete capture
        effects.append(drop(offer.slice, each.complete[part.slot]))
    if state.sync.lockstep:
        each.due = min(each.due, offer.t_m)
    each.add(part, state.quorum(now), state.grace_seconds, now)
    effects.append(Stage(part.slot, part.incarnation, offer.slice, part.capture))
    return [*effects, *merging.look(state, offer.slice, now)]


def _is_on_the_head(state: State, offer: pb.Offer) -> bool:
    """By the base's whole name: after a loss two values may have one number (rule 22)."""
    head = state.history.heads.get(offer.slice)
    if head is None or state.is_lost(offer.slice):
        return False
    return (offer.base, offer.base_digest) == (head.number, head.digest)


def drop(fragment: int, offer: Participant) -> Drop:
    """Forget an offer's values."""
    return Drop(offer.slot, offer.incarnation, fragment, offer.capture)


def _participant(state: State, slot: str, offer: pb.Offer) -> Participant:
    return Participant(
        slot=slot,
        incarnation=state.history.taken[slot].incarnation,
        capture=offer.capture,
        base=offer.base,
        steps=offer.counters.steps,
        tokens=offer.counters.tokens,
        cursor=offer.cursor,
        weight=weight(offer.counters.steps, offer.counters.tokens),
    )


def _note_transfer(state: State, each: Round, slot: str, now: float) -> None:
    """From the Call to the whole offer; late ones count too, so that a slow link gets in."""
    if slot in each.called:
        took = state.timings.transfer.add(now - each.called[slot])
        state.timings = dataclasses.replace(state.timings, transfer=took)
