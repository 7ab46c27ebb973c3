"""Committed data that this shard has lost comes back from its learners (rule 22)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import clock, log
from atoll_syncer.model.effects import Append, Effect, Send, StoreHeld, Tape
from atoll_syncer.model.recovery import (
    ANSWER_SECONDS,
    WAIT_SECONDS,
    Asked,
    Holder,
    Recovery,
    choose,
    why_wait,
)
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import State
from atoll_syncer.rules import clock as reports
from atoll_syncer.rules import ending, publishing, seeding
from atoll_syncer.rules.admission import refuse
from atoll_syncer.rules.offers import drop

REMEDY = "restore from a checkpoint, or start a new job"


# ------------------------------------------------------------ what tells of a loss


def restored(state: State, fragments: set[int], now: float) -> list[Effect]:
    """The objects of these heads are gone or corrupt: the log knows them, nobody here has them."""
    return begin(state, fragments, fragments, now) if fragments else []


def found_empty(state: State, now: float) -> list[Effect]:
    """Slices without a version in a store whose shard is marked begun."""
    every = set(range(state.sync.fragments))
    missing = every - state.history.heads.keys()
    return begin(state, missing, missing, now) if missing else []


def heard(state: State, session: Session, now: float) -> list[Effect]:
    """An admitted learner holds versions above the heads."""
    heads = state.history.heads
    above = {
        fragment
        for fragment, (number, _) in session.claims.items()
        if fragment not in heads or number > heads[fragment].number
    }
    if not above or not session.slot:
        return []
    return begin(state, above, above - heads.keys(), now)


def begin(state: State, lost: set[int], gone: set[int], now: float) -> list[Effect]:
    """Rounds stand still; who is alive is asked; no seed is taken."""
    effects: list[Effect] = []
    recovery = state.recovery
    if recovery is None:
        recovery = state.recovery = Recovery(began_at=now)
        if state.registrar:
            recovery.alive = frozenset(state.history.taken)
        for session in state.sessions.values():
            reports.raise_clock(state, session.join.tick_seen)
        record = {"event": "loss", "reason": "StoreLost", "slices": sorted(lost)}
        effects.append(Tape(record))
        if state.reigning and not state.marked:
            effects += seeding.mark(state)
    seeding.cancel(state)
    recovery.gone |= gone
    for fragment in sorted(lost - recovery.lost):
        recovery.lost.add(fragment)
        each = state.rounds.get(fragment)
        if each is not None and each.closed_at is None:
            effects += [drop(fragment, offer) for offer in each.participants]
            del state.rounds[fragment]
    return effects


# ------------------------------------------------------------ going on


def why(state: State, now: float) -> str:
    """What a recovery waits for, in words."""
    recovery = state.recovery
    if recovery is None:
        return ""
    waits = why_wait(recovery, joined(state), now)
    lost = ", ".join(map(str, sorted(recovery.lost)))
    return f"takes back slices {lost} from learners{': ' if waits else ''}{waits}"


def joined(state: State) -> frozenset[str]:
    """Slots of admitted sessions."""
    return frozenset(s.slot for s in state.sessions.values() if s.welcomed and s.slot)


def from_nothing(state: State) -> bool:
    """The log is lost as well: which incarnations there were, the versions held will tell."""
    every = set(range(state.sync.fragments))
    return state.recovery is not None and bool(every - state.history.heads.keys())


def move(state: State, now: float) -> list[Effect]:
    """Ask for what is to come, and end when all is there."""
    recovery = state.recovery
    if recovery is None or not state.reigning:
        return []
    _give_up_waiting(state, recovery, now)
    if recovery.met_at is None and (recovery.knocked or joined(state)):
        recovery.met_at = now
    if not state.marked or state.seeding is not None or why_wait(recovery, joined(state), now):
        return []
    effects: list[Effect] = []
    if state.layout is not None:
        for fragment in sorted(recovery.lost - recovery.asked.keys() - state.rounds.keys()):
            effects += _ask(state, recovery, fragment, now)
    _fail_when_nobody_holds(state, recovery, now)
    if recovery.lost:
        return effects
    state.recovery, state.failed = None, ""
    return [*effects, *(ending.say_final(state) if state.history.ended else [])]


def holders(state: State, fragment: int) -> list[Holder]:
    """Admitted learners with a version that would be taken."""
    recovery, head = state.recovery, state.history.heads.get(fragment)
    assert recovery is not None, "nothing is lost"
    lowest = head.number + 1 if head is not None and fragment not in recovery.gone else 0
    return [
        Holder(session=number, instance=each.join.instance, number=claim[0], epoch=claim[1])
        for number, each in sorted(state.sessions.items())
        if each.welcomed and each.slot
        if (claim := each.claims.get(fragment)) is not None and claim[0] >= lowest
    ]


def _ask(state: State, recovery: Recovery, fragment: int, now: float) -> list[Effect]:
    """The best holder, one slice at a time from each learner; without one, the head serves."""
    holder = choose(holders(state, fragment), recovery.failures, fragment)
    if holder is None:
        if fragment not in recovery.gone:
            recovery.lost.discard(fragment)
        return []
    if any(asked.holder.session == holder.session for asked in recovery.asked.values()):
        return []
    recovery.asked[fragment] = Asked(holder=holder, at=now)
    version = pb.Version(run=state.history.run, number=holder.number, epoch=holder.epoch)
    wanted = pb.SendHeld(version=pb.SliceVersion(slice=fragment, version=version))
    return [Send(holder.session, pb.ToLearner(send_held=wanted))]


def _give_up_waiting(state: State, recovery: Recovery, now: float) -> None:
    for fragment, asked in list(recovery.asked.items()):
        session = state.sessions.get(asked.holder.session)
        coming = session is not None and session.receiving is not None
        if not asked.storing and not coming and now - asked.at >= ANSWER_SECONDS:
            _count_failure(recovery, fragment)


def _count_failure(recovery: Recovery, fragment: int) -> None:
    key = recovery.asked.pop(fragment).holder.instance, fragment
    recovery.failures[key] = recovery.failures.get(key, 0) + 1


def _fail_when_nobody_holds(state: State, recovery: Recovery, now: float) -> None:
    """Said once somebody could have spoken; it ends when somebody does."""
    orphans = [
        fragment
        for fragment in sorted(recovery.gone & recovery.lost - recovery.asked.keys())
        if choose(holders(state, fragment), recovery.failures, fragment) is None
    ]
    if not orphans:
        state.failed = ""
    elif recovery.met_at is not None and now - recovery.met_at >= WAIT_SECONDS:
        names = ", ".join(map(str, orphans))
        state.failed = f"StoreLost: no learner holds slices {names}; {REMEDY}"


def refusal(state: State, join: pb.Join) -> pb.End | None:
    """After a failure only who may end it is let in.

    A registrar without its log gives no incarnations before it knows which there were.
    """
    if any(each.version.run == state.history.run for each in join.held):
        return None
    if state.failed:
        return refuse(pb.STORE_LOST, state.failed, REMEDY)
    recovery = state.recovery
    if recovery is None or not state.registrar or join.incarnation or not from_nothing(state):
        return None
    recovery.knocked = True
    reason = "the registrar takes back what it has lost"
    return refuse(pb.NOT_READY, reason, "try again", retry=True)


# ------------------------------------------------------------ what comes


def closed(state: State, session: int) -> None:
    """A session is gone: the next best is asked."""
    recovery = state.recovery
    if recovery is not None:
        for fragment, asked in list(recovery.asked.items()):
            if asked.holder.session == session and not asked.storing:
                del recovery.asked[fragment]


def rejected(state: State, session: int) -> None:
    """What a session sent is not what it should be."""
    recovery, sender = state.recovery, state.sessions.get(session)
    receiving = None if sender is None else sender.receiving
    if recovery is None or receiving is None or not receiving.HasField("held"):
        return
    fragment = receiving.held.version.slice
    if fragment in recovery.asked and recovery.asked[fragment].holder.session == session:
        _count_failure(recovery, fragment)


def objection(state: State, session: int, held: pb.Held) -> str:
    """Why a held version may not come; empty when it may."""
    fragment, version = held.version.slice, held.version.version
    asked = None if state.recovery is None else state.recovery.asked.get(fragment)
    if asked is None or asked.storing or asked.holder.session != session:
        return f"slice {fragment}: nobody asked for what is held"
    if version.run != state.history.run or version.number < asked.holder.number:
        return f"slice {fragment}: version {version.number}, not {asked.holder.number}, of the run"
    return ""


def arrived(state: State, session: int, held: pb.Held) -> list[Effect]:
    """It is whole, and its digest is its version's."""
    fragment, recovery = held.version.slice, state.recovery
    asked = None if recovery is None else recovery.asked.get(fragment)
    if asked is None or asked.storing or asked.holder.session != session:
        return []
    asked.storing, asked.held = True, held
    return [StoreHeld(fragment, session, number(state, held))]


def number(state: State, held: pb.Held) -> int:
    """One above what was held; above the head too, when its value is lost and an older comes."""
    head = state.history.heads.get(held.version.slice)
    lowest = 0 if head is None else head.number
    return max(held.version.version.number, lowest) + 1


def stored(state: State, fragment: int, digest: str, name: str) -> list[Effect]:
    """Its object is written; its entry makes it count."""
    assert state.recovery is not None, "nothing is lost"
    held = state.recovery.asked[fragment].held
    assert held is not None, "nothing came"
    assert state.layout is not None, "a value without a layout"
    version, first = held.version.version, not state.history.tensors
    entry = log.Committed(
        slice=fragment,
        number=number(state, held),
        epoch=state.epoch,
        digest=digest,
        object=name,
        base=version.number,
        tick=state.clock.tick,
        due=max(0, clock.newest_due(state.sync, fragment, state.clock.tick)),
        reason=f"StoreRecovered: version {version.number} of epoch {version.epoch}",
        last=False,
        recovered=True,
        participants=(),
        lineage=tuple(_merged(each) for each in held.lineage),
        tensors=seeding.tensors(state) if first else (),
        layout_digest=state.layout.digest if first else "",
    )
    return [Append(entry)]


def committed(state: State, entry: log.Committed) -> list[Effect]:
    """The version is durable: everybody gets it, and its next round comes when it is due."""
    recovery = state.recovery
    assert recovery is not None, "nothing is lost"
    asked = recovery.asked.pop(entry.slice)
    recovery.lost.discard(entry.slice)
    recovery.gone.discard(entry.slice)
    state.done.discard(entry.slice)
    state.clock.raise_to(entry.tick)
    state.starts[entry.slice] = max(state.starts.get(entry.slice, 0), entry.due)
    record = {
        "event": "commit",
        "shard": state.number,
        "epoch": entry.epoch,
        "tick": entry.tick,
        "due": entry.due,
        "slice": entry.slice,
        "version": entry.number,
        "base": entry.base,
        "digest": entry.digest,
        "reason": entry.reason,
        "recovered": True,
        "from": asked.holder.instance,
        "quorum_wait_seconds": 0.0,
        "grace_seconds": 0.0,
        "commit_seconds": 0.0,
        "participants": [],
        "left_out": [],
        "last": False,
    }
    return [*publishing.to_all(state, entry.slice), Tape(record)]


def _merged(each: pb.SlotMerged) -> log.Merged:
    return log.Merged(
        slot=each.slot,
        incarnation=each.incarnation,
        base=each.base,
        capture=each.capture,
        cursor=each.cursor,
    )
