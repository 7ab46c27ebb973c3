"""Committed data that this shard has lost comes back from the learners that hold it (rule 22).

A slice is lost when its newest version is not here:

- an object that the log names is gone or damaged (`found_damaged`, when it is read);
- an entry of the log is, which may have named a newer version (`suspected`, at the start);
- the shard is marked begun and its log names no version of a slice (`found_empty`): the whole
  store is gone, since the mark precedes every commit;
- an admitted learner holds a version above the head (`versions_claimed`): the store went back to
  an older state. At a shard that has never begun nobody can hold one, so the claim is ignored;
  elsewhere it is believed within bounds.

While anything is lost no round opens or closes, and no seed is taken. Slices in `gone` have no
value here at all; the others have an older head, which serves again if no learner holds more.

    serving --loss found--> waiting --all alive slots spoke, or 30 s---> asking --> storing
       ^                                                                   ^  |        |
       |                                            next best holder ------+--+        |
       |                                   (session ended, damaged, no answer)         |
       +--- nothing is lost any more <----------- entry is durable, Publish to all ----+

`alive` comes with the answer to a Hello; the registrar takes the slots of its own log. From each
learner one slice comes at a time. If no learner holds a version of a slice in `gone`, 30 s after a
learner could have said so, the shard has failed, until one that holds a version comes.

How far a learner's claim to hold a version is believed that its shard does not have (rule 47).

A version is durable before anybody has it (rule 19), so a claim above the head means one of three:

- *The store has lost something and shows it* (`is_lost`): an object or an entry is damaged, or the
  whole store is gone. Then learners alone know which versions there were. The clock may be lost as
  well, so every version counts that is possible at the highest tick that a learner names.
- *The store was put back to an older state, which is whole*, as from a copy of its disk. It shows
  nothing, so nothing but the claim says so. It counts once for each slot and slice, as far as this
  shard's own clock allows; the values move no further than that many steps may
  (numbers/commit), and of the lineage counts what slots have said here themselves.
- *The claim is not true.* Its learner is broken, or lies. It adopts nothing that this shard has, so
  after a while it is sent to start again, with the shard's values.

A version that is damaged, and that no learner holds: the one before it serves (rule 22).

Its object is kept until the version after the next one is durable. It comes back whole, with its
momentum and with the lineage that it had, so learners hear that what the damaged one had merged
beside is in no version: it is lost, and the entry's reason says how many tokens. It gets a number
above the damaged one's, and a later term's epoch, so no learner takes the one for the other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS
from atoll_protos.job import schedule
from atoll_protos.names import DIGEST_DIGITS
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Append,
    Effect,
    EndSession,
    Send,
    StoreHeld,
    StorePrevious,
    TapeLine,
    end_session,
    refuse,
)
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import (
    ANSWER_SECONDS,
    WAIT_SECONDS,
    AskedHolder,
    Holder,
    Recovery,
    ShardState,
    choose,
    why_wait,
)
from atoll_syncer.rules import ending, offers, publishing, rounds, seeding
from atoll_syncer.rules.calls import catch_up, reach

MORE_VERSIONS_MAX: Final = 1_000  # than ticks: each loss makes one, and the clock is seen late


def newer_may_exist(state: ShardState, fragment: int) -> bool:
    """Whether the store itself shows that a newer version of the slice may have been there."""
    history, recovery = state.history, state.recovery
    gone = fragment not in history.heads or (recovery is not None and fragment in recovery.gone)
    return gone or fragment in history.suspect


def number_max(state: ShardState, fragment: int) -> int:
    """Return the highest version that the slice can have had: a slice has at most one a tick."""
    head, ticks = state.history.heads.get(fragment), state.clock.tick
    if newer_may_exist(state, fragment):
        seen = (each.join.tick_seen for each in state.sessions.open.values() if each.slot)
        seen_max = max(ticks, *state.run.ticks.values(), *seen)
        ticks = max(ticks, min(seen_max, state.ending.length.claims_max))
    return max(ticks, 0 if head is None else head.number) + MORE_VERSIONS_MAX


def claims_above(state: ShardState, session: Session) -> set[int]:
    """Slices of which it says that it holds a version above the head."""
    heads = state.history.heads
    return {
        fragment
        for fragment, (number, _) in session.claims.items()
        if fragment not in heads or number > heads[fragment].number
    }


def is_believed(state: ShardState, session: Session, fragment: int) -> bool:
    """Whether what it claims of this slice can be so."""
    if session.claims[fragment][0] > number_max(state, fragment):
        return False
    if newer_may_exist(state, fragment) or fragment not in claims_above(state, session):
        return True
    return (session.slot, fragment) not in state.failures.taken_back


def claimed_lineage(
    state: ShardState, asked: AskedHolder, said: Sequence[pb.SlotMerged]
) -> tuple[log.Merged, ...]:
    """Return what the version holds of every slot, as far as it is believed."""
    merged = (log.of_fields(log.Merged, each) for each in said)
    return tuple(_known(state, each) if asked.unproven else each for each in merged)


def steps_to(state: ShardState, session: int, transfer: pb.Transfer) -> int:
    """How many versions lie before a held one whose values are to be judged; 0: they are not.

    What most learners hold, by the digest of all bits, is no work of one.
    """
    held = transfer.held
    fragment, version = held.version.slice, held.version.version
    asked = None if state.recovery is None else state.recovery.awaited(session, fragment)
    if asked is None or not asked.unproven or not transfer.HasField("held"):
        return 0
    named = {each.slot for each in state.sessions.open.values() if _names(state, each, held)}
    here = {each.slot for each in state.sessions.open.values() if each.welcomed and each.slot}
    learners = (state.expected.slots or state.history.taken.keys()) | here
    if len(named) > len(learners) // 2:
        return 0
    return version.number - state.history.heads[fragment].number


def _names(state: ShardState, session: Session, held: pb.Held) -> bool:
    """Whether a learner says that it holds this very value."""
    if not session.welcomed or not session.slot:
        return False
    fragment, version = held.version.slice, held.version.version
    progress = state.sessions.slots[session.slot].progress.get(fragment, pb.SliceProgress())
    reported = progress.held, progress.digest
    named = held.version in session.join.held
    return named or reported == (version.number, version.digest[:DIGEST_DIGITS])


def _known(state: ShardState, merged: log.Merged) -> log.Merged:
    """With no more than the slot has said at this shard."""
    history, slot = state.history, state.sessions.slots.get(merged.slot)
    taken = history.taken.get(merged.slot)
    incarnation = max(taken.incarnation if taken else 0, history.named.get(merged.slot, 0))
    reported = slot.report.cursor if slot is not None and slot.session is not None else 0
    cursor = max(history.cursors.get(merged.slot, 0), reported)
    return replace(
        merged,
        incarnation=min(merged.incarnation, incarnation),
        cursor=min(merged.cursor, cursor),
    )


NO_SESSION: Final = -1
ITS_STORE: Final = "the shard's own store"


def can_serve(state: ShardState, recovery: Recovery, fragment: int) -> bool:
    """Whether it is known which version that is, and nothing is known against its object."""
    known = fragment in state.history.heads and fragment in state.history.previous
    return known and state.layout is not None and fragment not in recovery.damaged


def serve(state: ShardState, recovery: Recovery, fragment: int, now: float) -> list[Effect]:
    history = state.history
    head, before = history.heads[fragment], history.previous[fragment]
    version = pb.Version(run=history.run, number=before.number, epoch=before.epoch)
    merged = history.previous_merged.get(fragment, {}).values()
    lineage = [publishing.said(each) for each in merged]
    recovery.asked[fragment] = AskedHolder(
        holder=Holder(
            session=NO_SESSION,
            slot="",
            instance=ITS_STORE,
            number=before.number,
            epoch=before.epoch,
        ),
        at=now,
        held=pb.Held(version=pb.SliceVersion(slice=fragment, version=version), lineage=lineage),
        storing=True,
        merges=before.merges,
        reason=f"StoreRecovered: version {before.number} of epoch {before.epoch}, of the store;"
        f" version {head.number} is damaged, no learner holds it, and {head.tokens} tokens that it"
        " had merged are lost",
    )
    return [StorePrevious(fragment, max(head.number, before.number) + 1)]


def earlier_is_lost(state: ShardState, fragment: int) -> None:
    """Note that the earlier version is damaged or gone as well."""
    if state.recovery is not None:
        state.recovery.asked.pop(fragment, None)
        state.recovery.damaged.add(fragment)


REMEDY: Final = REFUSALS[pb.STORE_LOST].remedy

# ------------------------------------------------------------ how a loss is found


def found_damaged(state: ShardState, fragments: set[int], now: float) -> list[Effect]:
    """Begin to recover the heads whose objects are gone or damaged."""
    return _begin(state, fragments, fragments, now) if fragments else []


def suspected(state: ShardState, now: float) -> list[Effect]:
    """Entries of the log are damaged or gone, which may have named newer versions."""
    suspect = state.history.suspect
    return _begin(state, set(suspect), set(), now) if suspect else []


def found_empty(state: ShardState, now: float) -> list[Effect]:
    """Slices without a version in a store whose shard is marked begun."""
    missing = set(state.fragments) - state.history.heads.keys()
    return _begin(state, missing, missing, now) if missing else []


def versions_claimed(state: ShardState, session: Session, now: float) -> list[Effect]:
    if state.recovery is not None:
        state.recovery.turned_away.discard(session.slot)  # it is here now
    above = claims_above(state, session)
    if not above or not session.slot or state.has_never_begun:
        state.failures.doubted.pop(session.number, None)
        return []
    believed = {each for each in above if is_believed(state, session, each)}
    if not believed or state.failures.are_too_many(session.slot):
        return _doubt(state, session, above, now)
    return _begin(state, believed, believed - state.history.heads.keys(), now)


def _doubt(state: ShardState, session: Session, above: set[int], now: float) -> list[Effect]:
    """Nothing explains what it holds, and it adopts nothing else: a new process has a new start."""
    since = state.failures.doubted.setdefault(session.number, now)
    if now - since < WAIT_SECONDS or any(newer_may_exist(state, each) for each in above):
        return []
    what = ", ".join(f"{session.claims[each][0]} of slice {each}" for each in sorted(above)[:4])
    reason = f"it says that it holds version {what}, which this shard never had"
    return [EndSession(session.number, refuse(pb.OTHER_RUN, reason))]


def _begin(state: ShardState, lost: set[int], gone: set[int], now: float) -> list[Effect]:
    effects: list[Effect] = []
    recovery = state.recovery
    if recovery is None:
        recovery = state.recovery = Recovery(began_at=now)
        if state.registrar:
            recovery.alive = frozenset(state.history.taken)
        catch_up(state, now)
        effects.append(TapeLine({"event": "loss", "reason": "StoreLost", "slices": sorted(lost)}))
        if state.term.durable and not state.seed.marked:
            effects += seeding.mark(state)
    seeding.cancel(state)
    recovery.gone |= gone
    for fragment in sorted(lost - recovery.lost):
        recovery.lost.add(fragment)
        effects += rounds.abandon(state, fragment)
    return effects


def registrar_says(state: ShardState, alive: frozenset[str]) -> None:
    """Take the slots alive at the registrar; an answer from before the loss does not count."""
    if state.recovery is not None:
        state.recovery.alive = alive


def turned_away(state: ShardState, join: pb.Join) -> None:
    """Wait for one that dials again, although the registrar may not know that it is alive."""
    if state.recovery is not None and not join.observer:
        state.recovery.turned_away.add(join.slot)


def seeded(state: ShardState) -> None:
    """Version 0 was on its way when the loss was found: every slice has a value now."""
    if state.recovery is not None:
        state.recovery.gone.clear()


# ------------------------------------------------------------ going on


def why(state: ShardState, now: float) -> str:
    """Return what the recovery waits for, in words; empty without one."""
    recovery = state.recovery
    if recovery is None:
        return ""
    waits = why_wait(recovery, joined(state), now)
    lost = ", ".join(map(str, sorted(recovery.lost)))
    return f"takes back slices {lost} from learners{': ' if waits else ''}{waits}"


def joined(state: ShardState) -> frozenset[str]:
    return frozenset(s.slot for s in state.sessions.open.values() if s.welcomed and s.slot)


def move(state: ShardState, now: float) -> list[Effect]:
    recovery = state.recovery
    if recovery is None or not state.term.durable:
        return []
    effects = _give_up_on_silent(state, recovery, now)
    came = recovery.could_answer_at is None and (recovery.empty or joined(state))
    if came or any(not each.storing for each in recovery.asked.values()):
        recovery.could_answer_at = now
    if (
        not state.seed.marked
        or state.seed.session is not None
        or (recovery.lost and why_wait(recovery, joined(state), now))
    ):
        return effects
    busy = recovery.asked.keys() | state.rounds.open.keys() | state.reading.unread
    for fragment in sorted(recovery.lost - busy):
        effects += _ask(state, recovery, fragment, now)
    _count_all(state, recovery)
    effects += _go_on_without_learners(state, recovery, now)
    if recovery.lost:
        return effects
    state.recovery = None
    return [*effects, *ending.say_final(state)]


def holders(state: ShardState, fragment: int) -> list[Holder]:
    """Admitted learners that say they hold a version worth taking back."""
    recovery, head = state.recovery, state.history.heads.get(fragment)
    assert recovery is not None, "nothing is lost"
    lowest = 0
    if head is not None and fragment not in recovery.gone:  # of a torn one the lineage is lost
        lowest = head.number + (fragment not in state.history.torn)
    return [
        Holder(
            session=number,
            slot=each.slot,
            instance=each.join.instance,
            number=claim[0],
            epoch=claim[1],
        )
        for number, each in sorted(state.sessions.open.items())
        if each.welcomed and each.slot
        if (claim := each.claims.get(fragment)) is not None and claim[0] >= lowest
        if is_believed(state, each, fragment)
    ]


def _ask(state: ShardState, recovery: Recovery, fragment: int, now: float) -> list[Effect]:
    """Ask the best holder, one slice at a time of a learner; without one, the head serves."""
    holder = choose(holders(state, fragment), state.failures)
    if holder is None:
        if fragment in recovery.gone:
            return []
        recovery.lost.discard(fragment)
        return publishing.to_lacking(state, fragment)  # who joined meanwhile has not got it
    if any(asked.holder.session == holder.session for asked in recovery.asked.values()):
        return []
    new_layout = _lay_out(state, recovery, holder)
    if new_layout is None:
        return []
    unproven = not newer_may_exist(state, fragment)
    recovery.asked[fragment] = AskedHolder(holder=holder, at=now, unproven=unproven)
    version = pb.Version(run=state.history.run, number=holder.number, epoch=holder.epoch)
    wanted = pb.SendHeld(version=pb.SliceVersion(slice=fragment, version=version))
    return [*new_layout, Send(holder.session, pb.ToLearner(send_held=wanted))]


def _lay_out(state: ShardState, recovery: Recovery, holder: Holder) -> list[Effect] | None:
    """None while other values are on their way: all must come in one layout."""
    session = state.sessions.open[holder.session]
    digest = "" if state.layout is None else state.layout.digest
    if recovery.asked and session.join.layout_digest != digest:
        return None
    return seeding.lay_out(state, session)


def _count_all(state: ShardState, recovery: Recovery) -> None:
    """Count the slices of a model just laid out: more or fewer than were known to be lost."""
    if state.layout is not None:
        recovery.lost &= set(state.fragments)
        recovery.gone &= set(state.fragments)
    unknown = set(state.fragments) - state.history.heads.keys() - recovery.lost
    recovery.lost |= unknown
    recovery.gone |= unknown


def _give_up_on_silent(state: ShardState, recovery: Recovery, now: float) -> list[Effect]:
    ends: list[Effect] = []
    for fragment, asked in list(recovery.asked.items()):
        session = state.sessions.open.get(asked.holder.session)
        coming = session is not None and bool(session.receiving)
        if not asked.storing and not coming and now - asked.at >= ANSWER_SECONDS:
            _count_failure(state, recovery, fragment)
            if state.failures.are_too_many(asked.holder.slot):
                reason = f"slice {fragment}: version {asked.holder.number} never came"
                ends.append(end_session(asked.holder.session, pb.BAD_MESSAGE, reason))
    return ends


def _count_failure(state: ShardState, recovery: Recovery, fragment: int) -> None:
    slot = recovery.asked.pop(fragment).holder.slot
    state.failures.counts[slot] = state.failures.counts.get(slot, 0) + 1


def _go_on_without_learners(state: ShardState, recovery: Recovery, now: float) -> list[Effect]:
    """After 30 s in which learners could have named a version: the one before it, or failed."""
    since = recovery.could_answer_at
    waited = since is not None and now - since >= WAIT_SECONDS
    orphans = [
        fragment
        for fragment in sorted(recovery.gone & recovery.lost - recovery.asked.keys())
        if choose(holders(state, fragment), state.failures) is None
    ]
    kept = [each for each in orphans if can_serve(state, recovery, each)]
    orphans = [each for each in orphans if each not in kept]
    if not orphans:
        recovery.failed = ""
    elif waited:
        names = ", ".join(map(str, orphans))
        recovery.failed = f"StoreLost: no learner holds slices {names}; {REMEDY}"
    serving = (serve(state, recovery, each, now) for each in kept if waited)
    return [effect for effects in serving for effect in effects]


def refusal(state: ShardState, join: pb.Join) -> pb.End | None:
    """Why this learner is not admitted now; None when it may be.

    After a failure only a learner that holds versions of the run may end it. A registrar without
    its log gives no incarnations before it knows which ones it had given.
    """
    if any(each.version.run == state.history.run for each in join.held):
        return None
    if state.failed:
        return refuse(pb.STORE_LOST, state.failed)
    recovery, knows_all = state.recovery, state.history.heads.keys() >= set(state.fragments)
    if recovery is None or not state.registrar or join.incarnation or knows_all:
        return None
    recovery.empty.add(join.slot)  # it is admitted only afterwards, so nobody waits for it
    return refuse(pb.NOT_READY, "the registrar takes back what it has lost")


# ------------------------------------------------------------ a held version comes


def session_closed(state: ShardState, session: int) -> None:
    state.failures.doubted.pop(session, None)
    recovery = state.recovery
    if recovery is not None:
        for fragment in list(recovery.asked):
            if asked := recovery.awaited(session, fragment):
                del recovery.asked[fragment]
                ends, slot = state.failures.ends, asked.holder.slot
                ends[slot] = ends.get(slot, 0) + 1


def rejected(state: ShardState, session: int, transfer: pb.Transfer) -> None:
    """Count a damaged transfer as a failure, if it was a held version."""
    recovery, fragment = state.recovery, transfer.held.version.slice
    if recovery and transfer.HasField("held") and recovery.awaited(session, fragment):
        _count_failure(state, recovery, fragment)


def objection(state: ShardState, session: int, held: pb.Held) -> str:
    fragment, version = held.version.slice, held.version.version
    asked = None if state.recovery is None else state.recovery.awaited(session, fragment)
    if asked is None:
        return f"slice {fragment}: this session was not asked for its version"
    if version.run != state.history.run or version.number < asked.holder.number:
        return f"slice {fragment}: version {version.number}, not {asked.holder.number}, of the run"
    if version.number > (most := number_max(state, fragment)):
        return f"slice {fragment}: version {version.number} is above {most}"
    return ""


def arrived(state: ShardState, session: int, held: pb.Held) -> list[Effect]:
    """To be stored, unless a learner with a higher version has come meanwhile: it is asked."""
    fragment, recovery = held.version.slice, state.recovery
    asked = None if recovery is None else recovery.awaited(session, fragment)
    if recovery is None or asked is None:
        return []
    best = choose(holders(state, fragment), state.failures)
    if best is not None and best.number > held.version.version.number:
        del recovery.asked[fragment]
        return []
    asked.storing, asked.held = True, held
    return [StoreHeld(fragment, session, number(state, held))]


def number(state: ShardState, held: pb.Held) -> int:
    """Return the new version's number, above what was held and above the lost head."""
    head = state.history.heads.get(held.version.slice)
    lowest = 0 if head is None else head.number
    return max(held.version.version.number, lowest) + 1


def stored(state: ShardState, fragment: int, digest: str, name: str) -> list[Effect]:
    assert state.recovery is not None, "nothing is lost"
    asked = state.recovery.asked[fragment]
    held = asked.held
    assert held is not None, "nothing came"
    assert state.layout is not None, "a value without a layout"
    version, first = held.version.version, not state.history.tensors
    entry = log.Committed(
        slice=fragment,
        number=number(state, held),
        epoch=state.term.epoch,
        digest=digest,
        object=name,
        base=version.number,
        tick=state.clock.tick,
        due=max(0, schedule.newest_due(state.sync, fragment, state.clock.tick)),
        reason=asked.reason or f"StoreRecovered: version {version.number} of epoch {version.epoch}",
        last=False,
        recovered=True,
        participants=(),
        lineage=claimed_lineage(state, asked, held.lineage),
        tensors=seeding.tensors(state) if first else (),
        layout_digest=state.layout.digest if first else "",
        tokens=state.sessions.counted,
        trained=_trained(state, () if asked.unproven else held.lineage),
        merges=asked.merges,
    )
    return [Append(entry)]


def committed(state: ShardState, entry: log.Committed) -> list[Effect]:
    recovery = state.recovery
    assert recovery is not None, "nothing is lost"
    asked = recovery.asked.pop(entry.slice)
    for count in (state.failures.counts, state.failures.ends):
        count.pop(asked.holder.slot, None)
    if asked.unproven:
        state.failures.taken_back.add((asked.holder.slot, entry.slice))
    recovery.lost.discard(entry.slice)
    recovery.gone.discard(entry.slice)
    reach(state, entry.tick, own=False)
    rounds.recovered(state, entry)
    ends = seeding.end_others(state) if entry.tensors else []
    record = offers.line(
        state,
        entry,
        recovered=True,
        **{"from": asked.holder.instance},
        quorum_wait_seconds=0.0,
        grace_seconds=0.0,
        commit_seconds=0.0,
        participants=[],
        left_out=[],
    )
    return [*publishing.to_all(state, entry.slice), TapeLine(record), *ends]


def _trained(state: ShardState, lineage: Iterable[pb.SlotMerged]) -> dict[str, log.Trained]:
    """Return what slots have trained, as the lineage says and as this process has heard."""
    trained = state.unwritten
    for of, each in ((each.slot, each.trained) for each in lineage):
        said = log.of_fields(log.Trained, each)
        trained[of] = trained.get(of, log.Trained()).also(said)
    return trained
