"""One attempt to merge one slice, from its start to its durable version (rules 9 to 15, 19).

    (no round) --slice is due--> open --closed---> merging --entry durable--> (no round)
                                  |  ^    |                        |
                             Call |  | a complete offer            +--> Publish to every session
                                  v  |    |
                                learners  +-- last round without any offer, head in all its
                                              bits already --> finished

1. `calls.start_due`: the clock makes a slice due, and its round begins on the slice's head. A round
   that is still open at its next due tick continues with the newer due tick.
2. `calls.call`: every usable learner gets a Call, once for a round and session: the credit for one
   offer. One that died with its session is made again to the session that follows.
3. `completed`: an offer that arrived whole counts for its round, or it is late. A slot counts
   once, with its newest capture. The K-th offer starts the grace. A complete offer outlives its
   session; only a higher incarnation of its slot removes it (`withdraw`, rule 5).
4. `look` decides after every complete offer, and for every open round after every input, since a
   learner that is lost may be the one awaited. Only a slice that is here is merged.
5. `_close`: the effect MergeOffers, with the offers in slot order, so that a replay sums in the
   same order. From here on the round takes no offer.
6. `merged`: the new version's objects are written, and its entry is appended.
7. `committed`: the entry is durable, which alone makes the version count.

A slice has at most one round, whose base is the slice's head until it commits. It never closes with
fewer than K offers, except the last one. Rounds begin and close only while the shard serves.

In modes that wait ("lock-step": rule 15) there are no Calls. Each learner hands over at the due
tick by itself, and the first one opens the round. It closes when every Training learner whose
position has not passed the due tick has handed over; the commit moves the clock.
"""

import dataclasses
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import base_encoding
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Drop, Effect, MergeOffers, Stage, TapeLine
from atoll_syncer.model.log import Participant
from atoll_syncer.model.roster import (
    Coming,
    MergeFindings,
    Round,
    Session,
    Slot,
    momentum,
    ticks_expected,
)
from atoll_syncer.model.state import MergeShare, ShardState, Standing
from atoll_syncer.rules import calls, offers, publishing
from atoll_syncer.rules.calls import reach
from atoll_syncer.rules.publishing import keep_data_states

SHARES_MIN: Final = 3  # learners of a merge of which one may have too much

# ------------------------------------------------------------ 3: an offer is complete


def completed(
    state: ShardState, sender: Session, coming: Coming, standing: Standing, now: float
) -> list[Effect]:
    offer = coming.head.offer
    part = offers.participant(state, sender.slot, offer)
    state.rounds.above.pop(part.slot, None)
    if part.tokens < offer.counters.tokens:
        state.rounds.above[part.slot] = offer.counters.tokens / offer.counters.steps
    _note_transfer(state, part.slot, now - coming.asked_at)
    fits = offers.is_on_the_head(state, offer)
    if state.sync.lockstep:
        handed_over(state, offer, now)
    each = state.rounds.open.get(offer.slice)
    if each is None or each.closed_at is not None or each.base != offer.base or not fits:
        return late(state, offer.slice, part)
    effects: list[Effect] = []
    before = each.complete.get(part.slot)
    if before is not None and before.capture >= part.capture:  # rule 13: the newest capture
        return look(state, offer.slice, standing, now, state.sessions.slots[part.slot])
    if before is not None:
        effects.append(drop(offer.slice, before))
    if state.sync.lockstep:
        each.due = min(each.due, offer.t_m)
    each.refused.discard(part.slot)
    each.add(part, now, coming.data_state)
    effects.append(Stage(part.slot, part.incarnation, offer.slice, part.capture))
    slot = state.sessions.slots[part.slot]
    return [*effects, *look(state, offer.slice, standing, now, slot)]


def handed_over(state: ShardState, offer: pb.Offer, now: float) -> None:
    """In lock-step the first hand-over on the head begins the round, also one that is refused."""
    begins = state.sync.lockstep and offer.slice not in state.rounds.open
    if begins and offers.is_on_the_head(state, offer) and not _is_final(state, offer.slice):
        calls.begin(state, offer.slice, offer.t_m, now)


def _is_final(state: ShardState, fragment: int) -> bool:
    """Whether no version follows the slice's head: learners finish with it, and it is exported."""
    return state.history.ended or fragment in state.rounds.finished


def late(state: ShardState, fragment: int, part: Participant, reason: str = "") -> list[Effect]:
    record = {"event": "late", "slot": part.slot, "slice": fragment, "base": part.base}
    counts = {"capture": part.capture, "tokens": part.tokens}
    return [TapeLine({**record, **counts, **({"reason": reason} if reason else {})})]


def _note_transfer(state: ShardState, name: str, seconds: float) -> None:
    state.sessions.slots[name].note_offer_time(seconds)
    took = state.rounds.timings.transfer.add(seconds)
    state.rounds.timings = dataclasses.replace(state.rounds.timings, transfer=took)


def session_closed(state: ShardState, slot: str) -> None:
    """Drop the Calls of the slot's session; complete offers stay (rule 11)."""
    for each in state.rounds.open.values():
        if slot not in each.complete:
            each.called.pop(slot, None)


def withdraw(state: ShardState, slot: str, standing: Standing) -> list[Effect]:
    """Remove offers of a lower incarnation from rounds that are open: a higher one was taken."""
    effects: list[Effect] = []
    for each in state.rounds.open.values():
        offer = each.complete.get(slot)
        if offer is not None and each.closed_at is None:
            each.remove(slot)
            each.called.pop(slot, None)  # the successor gets a Call of its own
            if len(each.complete) < offers.quorum_of(state, each, standing):
                each.quorum_at = None
            each.count_grace_again(offers.quorum_of(state, each, standing))
            effects.append(drop(each.slice, offer))
    return effects


def drop(fragment: int, offer: Participant) -> Drop:
    return Drop(offer.slot, offer.incarnation, fragment, offer.capture)


# ------------------------------------------------------------ 4 and 5: a round closes


def has_seen(state: ShardState, standing: Standing) -> bool:
    """Whether the last look at all rounds saw this tick, and the same learners in training."""
    return state.rounds.seen == (standing.training, state.clock.tick)


def look_at_all(
    state: ShardState, standing: Standing, now: float, only: Slot | None = None
) -> list[Effect]:
    """Every open round, by slice. With `only` nothing has changed but what that slot does."""
    state.rounds.seen = standing.training, state.clock.tick
    effects: list[Effect] = []
    for fragment in sorted(state.rounds.open):
        effects += look(state, fragment, standing, now, only)
    return effects


def look(
    state: ShardState, fragment: int, standing: Standing, now: float, only: Slot | None = None
) -> list[Effect]:
    """Most looks find one learner that the round still waits for, and end there."""
    each = state.rounds.open[fragment]
    if each.closed_at is not None:
        return []
    effects: list[Effect] = []
    serving, quorum = state.serving, 1
    if not state.sync.lockstep:  # there it has its quorum when nobody is missing
        quorum = offers.quorum_of(state, each, standing)
        each.note_quorum(quorum, standing.grace_seconds, now)
        if serving:
            effects += calls.call(state, each, now, only, newcomers=each.last)
    if not serving or (len(each.complete) < quorum and not each.last):
        return effects
    if not state.is_here(fragment):
        return effects
    over = each.is_over(now)
    if not over and offers.waits(state, each, standing, now):
        return effects
    missing = offers.missing_slots(state, each, standing, now) if over else []
    return [*effects, *_close(state, each, each.why_closed(missing), now)]


def _close(state: ShardState, each: Round, reason: str, now: float) -> list[Effect]:
    """Close a round; a last one without offers leaves its slice, unless rounded (rule 17)."""
    if not each.complete:
        assert each.last, "only a last round may close with nothing"
        if not _is_rounded(state, each.slice):
            del state.rounds.open[each.slice]
            finish(state, each.slice)
            return []
        reason = "last round: no offer, the same values in f32"
    each.closed_at, each.reason = now, reason
    waited = state.rounds.timings.quorum.add((each.quorum_at or now) - each.opened_at)
    state.rounds.timings = dataclasses.replace(state.rounds.timings, quorum=waited)
    cursors = state.history.cursors
    for part in each.participants:
        if part.cursor <= cursors.get(part.slot, 0):
            each.data_states.pop(part.slot, None)  # a newer one is kept already
    end = state.ending.length.steps
    each.last |= state.sync.lockstep and end is not None and each.due >= end
    tick = max(state.clock.tick, each.due)  # in lock-step the commit moves the clock
    ticks = ticks_expected(state.ending.length, tick, state.sessions.tokens)
    each.momentum = momentum(state.sync, state.history.heads[each.slice].merges, ticks)
    states = dict(each.data_states)
    return [MergeOffers(each.slice, each.participants, each.momentum, states, each.last)]


def _is_rounded(state: ShardState, fragment: int) -> bool:
    """Whether the head has fewer bits than a last version of its slice (rule 17)."""
    assert state.layout is not None, "a round without a layout"
    base = base_encoding(state.sync.wire_down)
    owned = state.layout.slice(state.number, fragment)
    return not state.history.heads[fragment].last and (
        state.layout.final_encoding(owned, base) != base
    )


# ------------------------------------------------------------ 6 and 7: a version


def merged(
    state: ShardState,
    fragment: int,
    digest: str,
    name: str,
    found: MergeFindings,
    data_states: str,
) -> list[Effect]:
    """Offers that the merge left out are late (rule 12)."""
    each = state.rounds.open[fragment]
    each.found = found
    effects: list[Effect] = []
    for slot, reason in sorted(found.left_out.items()):
        part = each.remove(slot)
        assert part is not None, "an offer that was not merged"
        calls.note_refused(state, slot, reason)
        effects += late(state, fragment, part, reason)
    if found.left_out:
        each.reason += f"; without the offers of {', '.join(sorted(found.left_out))}"
    tick = max(state.clock.tick, each.due) if state.sync.lockstep else state.clock.tick
    entry = log.Committed(
        slice=fragment,
        number=each.base + 1,
        epoch=state.term.epoch,
        digest=digest,
        object=name,
        base=each.base,
        tick=tick,
        due=each.due,
        reason=each.reason,
        last=each.last,
        recovered=False,
        participants=each.participants,
        data_states=dict.fromkeys(sorted(each.data_states), data_states),
        momentum=each.momentum,
        merges=state.history.heads[fragment].merges + bool(each.participants),
        tokens=state.sessions.counted,
        trained=state.unwritten,
        uptime=state.sessions.uptime,
    )
    return [*effects, Append(entry)]


def committed(state: ShardState, entry: log.Committed, now: float) -> list[Effect]:
    each = state.rounds.open.pop(entry.slice)
    keep_data_states(state, entry, each.data_states)
    reach(state, entry.tick)
    note_start(state, entry.slice, entry.due)
    if entry.last and state.ending.began_at is not None:
        finish(state, entry.slice)
    took = state.rounds.timings.sync.add(now - (each.closed_at or now))
    state.rounds.timings = dataclasses.replace(state.rounds.timings, sync=took)
    _note_shares(state, entry)
    return [
        *publishing.to_all(state, entry.slice),
        TapeLine(offers.commit(state, entry, each, now)),
    ]


def _note_shares(state: ShardState, entry: log.Committed) -> None:
    """How much of this merge came from whom, which are offers that were not refused.

    Merges of two learners say nothing of one of them.
    """
    known, shares = state.rounds.shares, offers.merge_shares(entry)
    for part in entry.participants:
        state.rounds.refused.pop(part.slot, None)
        share = shares[part.slot]
        over_half = known[part.slot].over_half if part.slot in known else 0
        if len(entry.participants) >= SHARES_MIN:
            over_half = over_half + 1 if share > 0.5 else 0  # noqa: PLR2004 - half
        known[part.slot] = MergeShare(
            share=share, tokens_per_step=part.tokens / part.steps, over_half=over_half
        )


def deadlines(state: ShardState) -> list[float]:
    """When open rounds close at the latest, whatever comes."""
    found: list[float] = []
    for each in state.rounds.open.values():
        if each.closed_at is None and state.serving and state.is_here(each.slice):
            if each.deadline is not None:
                found.append(each.deadline)
            elif each.quorum_at is not None and not state.sync.lockstep:
                found.append(each.quorum_at + each.grace_seconds)
    return found


# ------------------------------------------------------------ what other rules change


def note_start(state: ShardState, fragment: int, due: int) -> None:
    state.rounds.starts[fragment] = max(state.rounds.starts.get(fragment, 0), due)


def seeded(state: ShardState) -> None:
    state.rounds.starts = dict(state.history.due)


def finish(state: ShardState, fragment: int) -> None:
    state.rounds.finished.add(fragment)


def abandon(state: ShardState, fragment: int) -> list[Effect]:
    """End the open round of a slice whose newest version is lost, without one (rule 22)."""
    each = state.rounds.open.get(fragment)
    if each is None or each.closed_at is not None:
        return []
    del state.rounds.open[fragment]
    return [drop(fragment, offer) for offer in each.participants]


def recovered(state: ShardState, entry: log.Committed) -> None:
    keep_data_states(state, entry, {})
    state.rounds.finished.discard(entry.slice)
    note_start(state, entry.slice, entry.due)
