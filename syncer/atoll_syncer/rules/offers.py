"""The tape's line of a commit (rule 29): what a person asks about a round.

The tape decides nothing. A commit has one line, whichever process writes it: the one that merged,
or one that comes after it and finds the entry in the log without a line.

Who may hand over, whom a round waits for, and which offers may come (rules 6, 10, 11, 13 to 15).

Questions about a round and its learners; nothing here changes the State. rules/rounds asks them
and acts on the answers.
"""

import dataclasses
import math
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job import schedule
from atoll_protos.job.run_file import slot_text
from atoll_protos.names import COUNTER_MAX, DATA_STATE_BYTES_MAX, split_slot
from atoll_syncer.model.log import NOTHING_SETTLED, Committed, Participant, Settled
from atoll_syncer.model.roster import STALL_STEPS, Round, Session, Slot, weight
from atoll_syncer.model.state import ShardState, Standing
from atoll_syncer.rules import publishing

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


def missing_slots(state: ShardState, each: Round, standing: Standing, now: float) -> list[str]:
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
    known.extend(reversed(missing_slots(state, each, standing, now)))
    return bool(known)


def is_newcomer(state: ShardState, slot: Slot) -> bool:
    """Return whether a slot, begun or there at the beginning, has no work in any version yet.

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


def quorum_of(state: ShardState, each: Round, standing: Standing) -> int:
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
    """Return what the learner keeps with the offer's cursor; sent once a session (rule 28)."""
    if offer.same_data_state:
        return sender.data_state
    return offer.data_state if offer.HasField("data_state") else None


def tokens_per_step_max(state: ShardState, slot: str) -> int | None:
    return state.expected.limit(split_slot(slot)[0]).tokens_per_step


def participant(state: ShardState, slot: str, offer: pb.Offer) -> Participant:
    """Cut what is above the limit of its region's learners to the limit (rule 41)."""
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


def counts(state: ShardState, now: float) -> pb.Tokens:
    """Return what became of all tokens of this run, counted once for every slice (rule 13).

    A report may come after the commit of an offer that was made later: then `merged` counts.
    """
    slices, slots = len(state.fragments), state.sessions.slots
    settled, lost, pending = NOTHING_SETTLED, 0, 0
    trained = state.history.trained | {name: slot.trained for name, slot in slots.items()}
    for name, each in trained.items():
        known = slots.get(name)
        is_gone = known is None or known.state(now) == pb.SLOT_LOST
        before, present = slices * (each.before - each.parent), slices * each.now
        earlier, own = each.settled_before, each.settled
        if state.history.incomplete:
            earlier, own = _without_undone(earlier, before), _without_undone(own, present)
        settled = settled.plus(earlier).plus(own)
        rest = max(0, present - own.total)
        lost += max(0, before - earlier.total) + (rest if is_gone else 0)
        pending += 0 if is_gone else rest
    return pb.Tokens(
        trained=min(settled.total + lost + pending, COUNTER_MAX),
        merged=settled.merged,
        overlap=settled.overlap,
        late=settled.late,
        lost=min(lost, COUNTER_MAX),
        pending=min(pending, COUNTER_MAX),
        slices=slices,
    )


def _without_undone(settled: Settled, trained: int) -> Settled:
    """Remove what was merged in a version that a recovery has dropped (rule 22).

    The learner counts it as late, so that both together would be more than it has trained.
    """
    merged = min(settled.merged, max(0, trained - settled.overlap - settled.late))
    return replace(settled, merged=merged)


def commit(state: ShardState, entry: Committed, each: Round, now: float) -> dict[str, Any]:
    quorum_at = each.quorum_at or each.closed_at or now
    closed_at = each.closed_at or now
    present = {part.slot for part in entry.participants}
    names = Participant.__slots__
    return line(
        state,
        entry,
        quorum_wait_seconds=quorum_at - each.opened_at,
        grace_seconds=closed_at - quorum_at,
        commit_seconds=now - closed_at,
        participants=[{name: getattr(p, name) for name in names} for p in entry.participants],
        left_out=[
            {"slot": name, "reason": why_left_out(state, name, each, now)}
            for name in sorted(state.sessions.slots)
            if name not in present
        ],
        counts=_counts(state, now),
        seconds=state.sessions.uptime.seconds,
        training_seconds=state.sessions.uptime.training_seconds,
        norms=_rounded(each.found.norms),
        cosines=_rounded(each.found.cosines),
        learners=_learners(state),
        losses=[
            {"slot": part.slot, "incarnation": part.incarnation, "loss": loss}
            for part in entry.participants
            if (loss := _loss(state, part.slot)) is not None
        ],
    )


def _rounded(found: Mapping[str, float]) -> dict[str, float]:
    return {slot: float(f"{each:.6g}") for slot, each in sorted(found.items())}


def _counts(state: ShardState, now: float) -> dict[str, int]:
    said = counts(state, now)
    return {each.name: getattr(said, each.name) for each in said.DESCRIPTOR.fields}


def _learners(state: ShardState) -> dict[str, dict[str, float]]:
    """By slot: the tokens of all its processes, and how its newest one works, as it has said."""
    return {
        name: {
            "tokens": slot.tokens,
            "step_seconds": slot.report.step_seconds,
            "busy_share": slot.report.busy_share,
        }
        for name, slot in sorted(state.sessions.slots.items())
        if slot.tokens
    }


def _loss(state: ShardState, slot: str) -> float | None:
    """Return the training loss that a learner reported last, for people; None: it has told none."""
    known = state.sessions.slots.get(slot)
    if known is None or not known.report.t_m or not math.isfinite(known.report.loss):
        return None
    return known.report.loss


def commit_again(state: ShardState, entry: Committed) -> dict[str, Any]:
    """Write the tape's line of a commit, from its entry, that a killed process did not."""
    return line(
        state,
        entry,
        from_log=True,
        **({"recovered": True} if entry.recovered else {}),
        participants=[dataclasses.asdict(each) for each in entry.participants],
    )


def merge_shares(entry: Committed) -> dict[str, float]:
    """Of the weight of a merge, what each learner's offer has; by slot."""
    whole = sum(each.weight for each in entry.participants) or 1.0
    return {each.slot: each.weight / whole for each in entry.participants}


def line(state: ShardState, entry: Committed, **fields: Any) -> dict[str, Any]:
    return {
        "event": "commit",
        "shard": state.number,
        "epoch": entry.epoch,
        "tick": entry.tick,
        "due": entry.due,
        "slice": entry.slice,
        "version": entry.number,
        "base": entry.base,
        "digest": entry.digest,
        "momentum": entry.momentum,
        "reason": entry.reason,
        "tokens": entry.tokens,
        **fields,
        "shares": merge_shares(entry),
        "last": entry.last,
    }
