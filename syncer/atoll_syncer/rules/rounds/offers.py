"""Who may hand over, whom a round waits for, and which offers may come (rules 6, 10, 11, 13 to 15).

Questions about a round and its learners; nothing here changes the State. rules/rounds asks them
and acts on the answers.
"""

from collections.abc import Set
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job import schedule
from atoll_protos.job.shown_states import slot_text
from atoll_protos.names import DATA_STATE_BYTES_MAX, split_slot
from atoll_syncer.model.log import Participant
from atoll_syncer.model.roster import STALL_STEPS, Session, Slot
from atoll_syncer.model.round import Round, weight
from atoll_syncer.model.state import ShardState, Standing
from atoll_syncer.rules.rounds import publishing

TRANSFER_BEGINS_SECONDS_MAX: Final = 30.0  # behind others of the session, or else it was lost

# ------------------------------------------------------------ learners


def usable(state: ShardState, slot: Slot, each: Round, now: float) -> bool:
    """Rules 10 and 14: Training, on the current base, at least one step since, not far ahead."""
    progress, head = slot.steps_since(each.slice), state.history.heads[each.slice]
    return (
        slot.state(now) == pb.SLOT_TRAINING
        and progress is not None
        and publishing.is_version(progress, head)
        and progress.since.steps >= 1
        and slot.report.tick_seen <= state.clock.tick + 4 * state.sync.period
    )


def missing(state: ShardState, each: Round, standing: Standing, now: float) -> list[str]:
    names: Set[str] = standing.training if state.sync.lockstep else state.sessions.slots.keys()
    others = sorted(names - each.complete.keys())
    return [name for name in others if _may_come(state, each, standing, name, now)]


def _may_come(state: ShardState, each: Round, standing: Standing, name: str, now: float) -> bool:
    slot = state.sessions.slots[name]
    if name in each.refused:
        return False
    if state.sync.lockstep:
        return name in standing.training and _hands_over(state, slot, each, now)
    if name in each.called:
        return name in standing.training and (each.last or _comes_in_time(state, each, slot))
    return is_newcomer(state, slot) if each.last else _makes_first_step(state, each, slot, now)


def _comes_in_time(state: ShardState, each: Round, slot: Slot) -> bool:
    return not state.is_too_slow(slot) and each.comes_in_time(slot.name, slot.offer_time)


def _makes_first_step(state: ShardState, each: Round, slot: Slot, now: float) -> bool:
    """Whether it lacks only a step on the round's base: it may be called within the grace.

    How long its very first step takes nobody knows, so as long as steps of the others.
    """
    progress, makes = slot.steps_since(each.slice), slot.state(now) == pb.SLOT_TRAINING
    if slot.report.training and not slot.report.step_seconds and slot.session is not None:
        makes = now - slot.stepped_at <= STALL_STEPS * state.clock.step_seconds
    return (
        makes
        and progress is not None
        and progress.since.steps == 0
        and publishing.is_version(progress, state.history.heads[each.slice])
        and not state.is_too_slow(slot)
    )


def waits(state: ShardState, each: Round, standing: Standing, now: float) -> bool:
    """Whether an offer is missing. As long as it is the same one, nobody else is asked."""
    known = each.waits_for
    while known:
        name = known[-1]
        if name not in each.complete and _may_come(state, each, standing, name, now):
            return True
        known.pop()
    known.extend(reversed(missing(state, each, standing, now)))
    return bool(known)


def is_newcomer(state: ShardState, slot: Slot) -> bool:
    """A slot with no work in any version yet that has begun, or was there at the beginning.

    The last rounds wait for its first work. One that joins at the end is too late.
    """
    return (
        slot.session is not None
        and (slot.report.training or slot.name in state.sessions.founders)
        and not any(slot.name in merged for merged in state.history.merged.values())
    )


def _hands_over(state: ShardState, slot: Slot, each: Round, now: float) -> bool:
    """In lock-step: whether this learner's offer is on its way, or its position has to come.

    Of one that has passed the round's due tick the report says it: it may have passed the offer.
    If it has handed over nothing no round waits for it: it may itself wait for another slice.
    """
    position, progress = slot.report.t_m, slot.steps_since(each.slice)
    if position < each.due or progress is None:
        return position < each.due
    if position == each.due:
        return progress.since.steps >= 1
    session = None if slot.session is None else state.sessions.open.get(slot.session)
    if session is None or not progress.handed_over:
        return False
    begun = max(each.opened_at, session.heard_at)
    comes = each.slice in session.receiving or now - begun <= TRANSFER_BEGINS_SECONDS_MAX
    return comes and publishing.is_version(progress, state.history.heads[each.slice])


def quorum(state: ShardState, each: Round, standing: Standing) -> int:
    """How many complete offers this round needs (rule 11). In lock-step all hand over."""
    refused = each.refused - each.complete.keys()
    if max(len(each.complete), len(standing.training) - len(refused)) >= standing.quorum:
        return standing.quorum
    others = (standing.training | each.complete.keys()) - refused
    if len(others) >= standing.quorum:
        return standing.quorum
    return max(1, standing.quorum - len(refused))


def why_left_out(state: ShardState, slot: str, each: Round, now: float) -> str:
    """Why a slot has no part in a commit: its state, or what kept its offer away."""
    if slot in each.found.left_out:
        return each.found.left_out[slot]
    if slot in each.refused:
        return "refused"
    does = state.sessions.slots[slot].state(now)
    if does != pb.SLOT_TRAINING:
        return slot_text(does)
    return "late" if slot in each.called else "not usable"


# ------------------------------------------------------------ offers


def objection(state: ShardState, sender: Session, offer: pb.Offer) -> str:
    if offer.capture < 1 or offer.counters.steps != offer.capture:
        return f"slice {offer.slice}: an offer of {offer.capture} steps"
    if len(offer.data_state) > DATA_STATE_BYTES_MAX:
        return f"slice {offer.slice}: a data state of {len(offer.data_state)} bytes"
    if offer.same_data_state and sender.data_state is None:
        return f"slice {offer.slice}: no offer of this session has brought a data state"
    if state.sync.lockstep:
        return _hand_over_objection(state, sender, offer)
    credit = sender.credits.get(offer.slice)
    if credit is None or credit.base != offer.base:
        return f"slice {offer.slice}: an offer on base {offer.base} without a Call for it"
    return ""


def _hand_over_objection(state: ShardState, sender: Session, offer: pb.Offer) -> str:
    """Rule 15. Streams are not ordered, so an offer may come before the report of its step."""
    head = state.history.heads.get(offer.slice)
    if not state.is_lost(offer.slice) and (head is None or offer.base > head.number):
        return f"slice {offer.slice}: base {offer.base} is not known here"
    at_the_end = state.ending.length.is_end(offer.t_m)
    if not at_the_end and not schedule.hands_over(state.sync, offer.slice, offer.t_m):
        return f"slice {offer.slice}: it is not handed over at step {offer.t_m}"
    tick, reported = state.clock.tick, state.sessions.slots[sender.slot].report.t_m
    said = max(reported, sender.join.t_m)
    known = max(tick, min(said, tick + state.sync.period))  # nobody gets farther (rule 39)
    if offer.t_m > known + state.sync.period:
        return f"slice {offer.slice}: an offer of step {offer.t_m}, the last known is {known}"
    return ""


def is_on_the_head(state: ShardState, offer: pb.Offer) -> bool:
    """By the base's whole name: after a loss two values may have one number (rule 22)."""
    head = state.history.heads.get(offer.slice)
    if head is None or state.is_lost(offer.slice):
        return False
    return (offer.base, offer.base_digest) == (head.number, head.digest)


def data_state(sender: Session, offer: pb.Offer) -> bytes | None:
    """What the learner keeps with the offer's cursor; a session carries it once (rule 28)."""
    if offer.same_data_state:
        return sender.data_state
    return offer.data_state if offer.HasField("data_state") else None


def tokens_per_step_max(state: ShardState, slot: str) -> int | None:
    return state.expected.limit(split_slot(slot)[0]).tokens_per_step


def participant(state: ShardState, slot: str, offer: pb.Offer) -> Participant:
    """What is above the limit of its region's learners counts as the limit (rule 41)."""
    tokens, most = offer.counters.tokens, tokens_per_step_max(state, slot)
    if most is not None:
        tokens = min(tokens, most * offer.counters.steps)
    return Participant(
        slot=slot,
        incarnation=state.history.taken[slot].incarnation,
        capture=offer.capture,
        base=offer.base,
        steps=offer.counters.steps,
        tokens=tokens,
        cursor=offer.cursor,
        weight=weight(offer.counters.steps, tokens),
    )
