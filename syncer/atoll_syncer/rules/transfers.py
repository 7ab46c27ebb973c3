"""Whether a transfer may come, and where it goes once it is whole (rules 10, 12 and 25).

    head arrives --started--> Accept --all bytes, values examined--> verified
                     |                                  |
                     +--> the session ends              +--rejected--> the session ends, or the
                                                                       offer is late

Slice, permission and encoding are checked when the head arrives, before any memory is allocated;
the number of bytes follows from the layout alone. Where a session has several lanes, `started` is
asked with the first part of a transfer, and `verified` follows when all parts are here; so the
rules know nothing of parts (rule 33).
"""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import base_encoding, encoding_of
from atoll_syncer.model.effects import Accept, Effect, end_session
from atoll_syncer.model.roster import Coming, Session
from atoll_syncer.model.state import ShardState, Standing
from atoll_syncer.rules import companions, recovery, seeding, validation
from atoll_syncer.rules.rounds import calls, offers, rounds

SECONDS_MAX_LEAST: Final = 300.0  # of a whole transfer
TIMES_USUAL_MAX: Final = 10.0  # as long as the moving transfer time
BYTES_PER_SECOND_MIN: Final = 250e3  # a slower link is of no use
OVERLONG: Final = "a transfer goes on for much longer than others take, and is not whole"
COMPANION: Final = -1  # in place of the slice of a transfer that has none


def started(state: ShardState, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
    sender = _sender(state, session)
    if sender is None or state.layout is None:
        return _end(session, "a transfer came before the Welcome")
    if objection := validation.of_transfer(state, transfer):
        recovery.rejected(state, session, transfer)
        return _end(session, objection)
    kind = transfer.WhichOneof("kind")
    if kind == "companion":
        return _part_started(state, sender, transfer, now)
    fragment = slice_of(transfer)
    if fragment not in state.fragments:
        return _end(session, f"slice {fragment} is unknown")
    encoding = pb.F32
    match kind:
        case "offer":
            encoding = encoding_of(state.sync.wire_up)
            reason = offers.objection(state, sender, transfer.offer)
        case "seed":
            reason = seeding.objection(state, session)
        case "held":
            base = base_encoding(state.sync.wire_down)
            final = state.layout.final_encoding(state.layout.slice(state.number, fragment), base)
            encoding = transfer.encoding if transfer.encoding in (base, final) else base
            reason = recovery.objection(state, session, transfer.held)
        case _:
            reason = f"a learner does not send a transfer of kind {kind}"
    if reason:
        return _end(session, reason)
    if transfer.encoding != encoding:
        return _end(session, "the encoding is not the run file's")
    data_state = offers.data_state(sender, transfer.offer)
    if data_state is not None:
        sender.data_state = data_state
    credit = calls.spend_credit(sender, fragment) if kind == "offer" else None
    asked_at, sender.heard_at = credit.called_at if credit else now, now
    byte_count = state.layout.slice(state.number, fragment).form.byte_count(encoding)
    sender.receiving[fragment] = Coming(
        head=transfer,
        asked_at=asked_at,
        until=now + seconds_max(state, byte_count),
        data_state=data_state,
    )
    return [Accept(session, byte_count)]


def seconds_max(state: ShardState, byte_count: int) -> float:
    """How long a whole transfer may take: a frame now and then does not make it go on for ever."""
    usual = TIMES_USUAL_MAX * state.rounds.timings.transfer.or_else(0.0)
    return max(SECONDS_MAX_LEAST, usual, byte_count / BYTES_PER_SECOND_MIN)


def overlong(state: ShardState, now: float) -> list[Effect]:
    """End the sessions whose transfers drip; their Calls are made again to their next ones."""
    late = [
        (number, coming)
        for number, session in sorted(state.sessions.open.items())
        for coming in session.receiving.values()
        if now > coming.until
    ]
    ended = dict(reversed(late))  # one of each session
    return [
        effect
        for number, coming in ended.items()
        for effect in rejected(state, number, OVERLONG, now, coming.head)
    ]


def _part_started(
    state: ShardState, sender: Session, transfer: pb.Transfer, now: float
) -> list[Effect]:
    """A part of the companion: it belongs to no slice, and its size follows from its head."""
    reason = companions.objection(state, sender.number, transfer)
    if reason:
        return _end(sender.number, reason)
    sender.receiving[COMPANION], sender.heard_at = Coming(head=transfer, asked_at=now), now
    return [Accept(sender.number, transfer.byte_count)]


def part_stored(
    state: ShardState, session: int, transfer: pb.Transfer, name: str, now: float
) -> list[Effect]:
    """`name` is empty where nobody needed the part."""
    sender = _sender(state, session)
    if sender is None:
        return []
    sender.receiving.pop(COMPANION, None)
    sender.heard_at = now
    return companions.stored(state, session, transfer.companion, name)


def verified(
    state: ShardState, session: int, transfer: pb.Transfer, standing: Standing, now: float
) -> list[Effect]:
    """Whole, checksum right, all values finite: only now it counts (rule 12)."""
    sender = _sender(state, session)
    if sender is None:
        return []
    coming, sender.heard_at = _came(sender, transfer), now
    if transfer.HasField("offer"):
        if coming is None:  # a newer one has begun while this one was examined
            own = transfer.offer.data_state if transfer.offer.HasField("data_state") else None
            coming = Coming(head=transfer, asked_at=now, data_state=own)
        return rounds.completed(state, sender, coming, standing, now)
    if transfer.HasField("held"):
        return recovery.arrived(state, session, transfer.held)
    return seeding.arrived(state, session, transfer.seed)


def rejected(
    state: ShardState,
    session: int,
    reason: str,
    now: float,
    transfer: pb.Transfer | None = None,
    *,
    final: bool = False,
) -> list[Effect]:
    """The session ends. An offer that came as it was sent (`final`) is late instead (rule 12).

    `transfer` is the head of what is rejected, None where it has not begun.
    """
    sender = _sender(state, session)
    coming = None if sender is None or transfer is None else _came(sender, transfer)
    if sender is not None and coming is not None and coming.head.HasField("offer"):
        offer = coming.head.offer
        if final:
            rounds.handed_over(state, offer, now)
        calls.refused(state, sender.slot, offer.slice, reason, final=final)
        if final:
            part = offers.participant(state, sender.slot, offer)
            return rounds.late(state, offer.slice, part, reason)
    if coming is not None:
        recovery.rejected(state, session, coming.head)
    return _end(session, reason)


def _came(sender: Session, transfer: pb.Transfer) -> Coming | None:
    """The transfer is not under way any more; None where a newer one has taken its place."""
    fragment = slice_of(transfer)
    coming = sender.receiving.get(fragment)
    if coming is None or not _is_part(coming.head, transfer):
        return None
    return sender.receiving.pop(fragment)


def _is_part(head: pb.Transfer, other: pb.Transfer) -> bool:
    """Whether two heads are of one transfer: they may differ in the bytes of their parts."""
    kind = other.WhichOneof("kind")
    return head.WhichOneof("kind") == kind and (
        kind is None or getattr(head, kind) == getattr(other, kind)
    )


def _sender(state: ShardState, session: int) -> Session | None:
    """The session, if it is the one of its slot: nothing of an older one counts (rule 5)."""
    sender = state.sessions.open.get(session)
    if sender is None or not sender.welcomed or not sender.slot:
        return None
    return sender if state.sessions.slots[sender.slot].session == session else None


def slice_of(transfer: pb.Transfer) -> int:
    match transfer.WhichOneof("kind"):
        case "offer":
            return transfer.offer.slice
        case "held":
            return transfer.held.version.slice
    return transfer.seed.slice


def _end(session: int, reason: str) -> list[Effect]:
    return [end_session(session, pb.BAD_TRANSFER, reason)]
