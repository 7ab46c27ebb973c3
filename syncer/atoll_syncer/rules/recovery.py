"""Committed data that this shard has lost comes back from the learners that hold it (rule 22).

A slice is lost when its newest version is not here:

- an object that the log names is gone or damaged (`found_damaged`, when it is read);
- an entry of the log is, which may have named a newer version (`suspected`, at the start);
- the shard is marked begun and its log names no version of a slice (`found_empty`): the whole
  store is gone, since the mark precedes every commit;
- an admitted learner holds a version above the head (`versions_claimed`): the store went back to
  an older state. At a shard that has never begun nobody can hold one, so the claim is ignored.

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
"""

from collections.abc import Iterable
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS
from atoll_protos.job import schedule
from atoll_syncer.model import log
from atoll_syncer.model.effects import (
    Append,
    Effect,
    Send,
    StoreHeld,
    TapeLine,
    end_session,
    refuse,
)
from atoll_syncer.model.recovery import (
    ANSWER_SECONDS,
    WAIT_SECONDS,
    AskedHolder,
    Holder,
    Recovery,
    choose,
    why_wait,
)
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules import earlier_version, ending, seeding
from atoll_syncer.rules.rounds import publishing, records, rounds
from atoll_syncer.rules.rounds.clock import catch_up, reach

REMEDY: Final = REFUSALS[pb.STORE_LOST].remedy

# ------------------------------------------------------------ how a loss is found


def found_damaged(state: ShardState, fragments: set[int], now: float) -> list[Effect]:
    """The objects of these heads are gone or damaged."""
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
    heads = state.history.heads
    above = {
        fragment
        for fragment, (number, _) in session.claims.items()
        if fragment not in heads or number > heads[fragment].number
    }
    if not above or not session.slot or state.has_never_begun:
        return []
    if state.failures.are_too_many(session.slot):
        return []
    return _begin(state, above, above - heads.keys(), now)


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
    """The slots that are alive at the registrar; an answer from before the loss does not count."""
    if state.recovery is not None:
        state.recovery.alive = alive


def turned_away(state: ShardState, join: pb.Join) -> None:
    """It dials again and is waited for, although the registrar may not know that it is alive."""
    if state.recovery is not None and not join.observer:
        state.recovery.turned_away.add(join.slot)


def seeded(state: ShardState) -> None:
    """Version 0 was on its way when the loss was found: every slice has a value now."""
    if state.recovery is not None:
        state.recovery.gone.clear()


# ------------------------------------------------------------ going on


def why(state: ShardState, now: float) -> str:
    """What the recovery waits for, in words; empty without one."""
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
    ]


def _ask(state: ShardState, recovery: Recovery, fragment: int, now: float) -> list[Effect]:
    """The best holder, one slice at a time from each learner; without one, the head serves."""
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
    recovery.asked[fragment] = AskedHolder(holder=holder, at=now)
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
    """A model that was just laid out may have more slices than were known to be lost, or fewer."""
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
    kept = [each for each in orphans if earlier_version.can_serve(state, recovery, each)]
    orphans = [each for each in orphans if each not in kept]
    if not orphans:
        recovery.failed = ""
    elif waited:
        names = ", ".join(map(str, orphans))
        recovery.failed = f"StoreLost: no learner holds slices {names}; {REMEDY}"
    serving = (earlier_version.serve(state, recovery, each, now) for each in kept if waited)
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
    recovery = state.recovery
    if recovery is not None:
        for fragment in list(recovery.asked):
            if asked := recovery.awaited(session, fragment):
                del recovery.asked[fragment]
                ends, slot = state.failures.ends, asked.holder.slot
                ends[slot] = ends.get(slot, 0) + 1


def rejected(state: ShardState, session: int, transfer: pb.Transfer) -> None:
    """What a session sent is damaged; if it was a held version, that counts as a failure."""
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
    """The new version's number: above what was held, and above the head whose value is lost."""
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
        lineage=tuple(log.of_fields(log.Merged, each) for each in held.lineage),
        tensors=seeding.tensors(state) if first else (),
        layout_digest=state.layout.digest if first else "",
        tokens=state.sessions.counted,
        trained=_trained(state, held.lineage),
        merges=asked.merges,
    )
    return [Append(entry)]


def committed(state: ShardState, entry: log.Committed) -> list[Effect]:
    recovery = state.recovery
    assert recovery is not None, "nothing is lost"
    asked = recovery.asked.pop(entry.slice)
    for count in (state.failures.counts, state.failures.ends):
        count.pop(asked.holder.slot, None)
    recovery.lost.discard(entry.slice)
    recovery.gone.discard(entry.slice)
    reach(state, entry.tick, own=False)
    rounds.recovered(state, entry)
    ends = seeding.end_others(state) if entry.tensors else []
    record = records.line(
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
    """What slots have trained, as the lineage says and as this process has heard."""
    trained = state.unwritten
    for of, each in ((each.slot, each.trained) for each in lineage):
        said = log.of_fields(log.Trained, each)
        trained[of] = trained.get(of, log.Trained()).also(said)
    return trained
