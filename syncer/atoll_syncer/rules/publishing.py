"""Which versions a session holds, and what it lacks (rules 13, 17).

A version counts as held only by its whole name: after a loss two values may have one number
(rule 22). What a learner says about versions is kept in two fields of its session:

- `held`: slice -> number, where the reported digest is that of the head or of the version before
  it. Only then may a Publish be a difference to what the learner has.
- `claims`: slice -> (number, epoch) of anything of this run that it says it holds. A claim above
  the head is how a shard finds out that it lost data.

A Publish is composed when it is sent, so a session always gets the newest version. It names its
receiver's own last merged offer, however many versions ago that was merged (rule 13).

A term begins before its values are read; slices come back one after the other (rule 45).

    unread --read from the store--> here: merged, published
       |
       +--its object is gone or damaged--> lost (rules/recovery)

Meanwhile the log says all that a Welcome and a Call need. Offers on an unread slice are staged as
always, and its round closes once the slice is here.

Where a slot's data goes on, and the data state that its script gave with that cursor (rule 28).

A cursor that came without a data state leaves none behind.
"""

from collections.abc import Mapping
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job import schedule
from atoll_protos.names import DIGEST_DIGITS
from atoll_syncer.model.effects import Effect, PublishHead
from atoll_syncer.model.history import NONE_TRAINED, HeadVersion
from atoll_syncer.model.log import Committed, Merged, Settled
from atoll_syncer.model.roster import Session
from atoll_syncer.model.state import ShardState


def publish(state: ShardState, session: int, fragment: int) -> pb.Publish | None:
    """Return the head as this session gets it; None: the session or the head is not here."""
    receiver, head = state.sessions.open.get(session), state.history.heads.get(fragment)
    if receiver is None or head is None or not state.is_here(fragment):
        return None
    message = pb.Publish(version=state.head(fragment), tick=state.clock.tick, last=head.last)
    merged = state.history.merged.get(fragment, {}).get(receiver.slot)
    if merged is not None:
        message.merged.incarnation = merged.incarnation
        message.merged.base, message.merged.capture = merged.base, merged.capture
    if receiver.slot:
        message.lineage.extend(
            said(each, _trained(state, each.slot)) for each in state.history.lineage(fragment)
        )
    return message


def said(merged: Merged, trained: pb.Trained | None = None) -> pb.SlotMerged:
    """Return a part of a version's lineage, as messages have it."""
    return pb.SlotMerged(
        slot=merged.slot,
        incarnation=merged.incarnation,
        base=merged.base,
        capture=merged.capture,
        cursor=merged.cursor,
        trained=trained,
    )


def _trained(state: ShardState, slot: str) -> pb.Trained:
    """Return what is written of a slot's tokens, for a shard that loses its log (rule 22)."""
    each = state.history.trained.get(slot, NONE_TRAINED)
    return pb.Trained(
        incarnation=each.incarnation,
        before=each.before,
        now=each.now,
        said=each.said,
        settled=_settled(each.settled),
        settled_before=_settled(each.settled_before),
        parent=each.parent,
    )


def _settled(each: Settled) -> pb.Settled:
    return pb.Settled(merged=each.merged, overlap=each.overlap, late=each.late)


# ------------------------------------------------------------ what a session holds


def note_held(state: ShardState, joined: Session) -> None:
    """Note what a Join names of this run, and which of it are heads by their whole name."""
    for each in joined.join.held:
        head, version = state.history.heads.get(each.slice), each.version
        if version.run != state.history.run:
            continue
        if len(version.digest) >= DIGEST_DIGITS:
            joined.claims[each.slice] = version.number, version.epoch
        if head is not None and (version.number, version.digest) == (head.number, head.digest):
            joined.held[each.slice] = head.number


def note_progress(state: ShardState, sender: Session, progress: pb.SliceProgress) -> None:
    """Note what a Report has of one slice; its epoch is not known here."""
    fragment, number = progress.slice, progress.held
    sender.held.pop(fragment, None)
    for version in (state.history.heads.get(fragment), state.history.previous.get(fragment)):
        if version is not None and is_version(progress, version):
            sender.held[fragment] = number
    named = len(progress.digest) >= DIGEST_DIGITS  # a number alone proves nothing
    if named and number > sender.claims.get(fragment, (-1, 0))[0]:
        sender.claims[fragment] = number, 0


def is_version(progress: pb.SliceProgress, version: HeadVersion) -> bool:
    """Whether what is reported as held is this value, and not another one of this number."""
    same = progress.digest == version.digest[:DIGEST_DIGITS]
    return same and progress.held == version.number


# ------------------------------------------------------------ what is sent


def lacking(state: ShardState, joined: Session) -> list[Effect]:
    return [
        PublishHead(joined.number, fragment)
        for fragment, head in sorted(state.history.heads.items())
        if joined.held.get(fragment) != head.number and state.is_here(fragment)
    ]


def all_to(state: ShardState, session: int) -> list[Effect]:
    return [PublishHead(session, fragment) for fragment in sorted(state.history.heads)]


def to_lacking(state: ShardState, fragment: int) -> list[Effect]:
    """One slice's head to the sessions that do not hold it, unless it is kept back (rule 1)."""
    number, kept_back = state.history.heads[fragment].number, state.seed.kept_back
    return [
        PublishHead(session, fragment)
        for session in state.sessions.welcomed
        if state.sessions.open[session].held.get(fragment) != number
        if not (kept_back and state.sessions.open[session].slot)
    ]


def to_all(state: ShardState, fragment: int) -> list[Effect]:
    return [PublishHead(number, fragment) for number in state.sessions.welcomed]


OPEN_MAX: Final = 4  # rounds of unread slices: their offers wait in memory


def next_unread(state: ShardState) -> int | None:
    """Return the slice to be read next: whose round waits for it, or that is due first."""

    def due(fragment: int) -> tuple[int, int]:
        each = state.rounds.open.get(fragment)
        tick = schedule.next_due(state.sync, fragment, state.clock.tick)
        return (tick if each is None else each.due), fragment

    return min(state.reading.unread, key=due, default=None)


def may_begin(state: ShardState, fragment: int) -> bool:
    """Whether a round may begin: of an unread slice only while few others wait."""
    unread = state.reading.unread
    return fragment not in unread or len(unread & state.rounds.open.keys()) < OPEN_MAX


def is_here(state: ShardState, fragment: int) -> list[Effect]:
    state.reading.unread.discard(fragment)
    return [] if state.is_lost(fragment) else to_lacking(state, fragment)


def are_lost(state: ShardState, fragments: set[int]) -> None:
    state.reading.unread -= fragments


def cursor(state: ShardState, slot: str) -> tuple[int, bytes | None]:
    """Return the largest cursor of any version, also of one whose entry is not durable yet.

    A successor may be welcomed meanwhile, and must not train on that data again.
    """
    known: list[tuple[int, bytes | None]] = [
        (state.history.cursors.get(slot, 0), state.data_states.kept.get(slot))
    ]
    for each in state.rounds.open.values():
        if each.closed_at is not None and slot in each.complete:
            known.append((each.complete[slot].cursor, each.data_states.get(slot)))
    return max(known, key=lambda pair: (pair[0], pair[1] is not None))


def keep_data_states(state: ShardState, entry: Committed, new: Mapping[str, bytes]) -> None:
    kept, named = state.data_states.kept, state.history.data_states
    for slot, data_state in new.items():
        if slot in named and named[slot] == entry.data_states.get(slot):
            kept[slot] = data_state
    for slot in kept.keys() - named.keys():
        del kept[slot]


def take_data_states(state: ShardState, data_states: Mapping[str, bytes]) -> None:
    state.data_states.kept = dict(data_states)
