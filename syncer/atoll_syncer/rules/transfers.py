"""Credit and size of a transfer, before anything is allocated (rules 10 and 25)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import base_encoding, encoding_of
from atoll_syncer.model.effects import Accept, Effect
from atoll_syncer.model.state import State
from atoll_syncer.rules import offers, seeding
from atoll_syncer.rules import recovery as recovering
from atoll_syncer.rules.admission import end_session


def started(state: State, session: int, transfer: pb.Transfer) -> list[Effect]:
    """A transfer's head has come: accept it, or end its session."""
    sender = state.sessions.get(session)
    if sender is None or state.layout is None:
        return _end(session, "a transfer without a welcome")
    kind = transfer.WhichOneof("kind")
    fragment = slice_of(transfer)
    if fragment >= state.sync.fragments:
        return _end(session, f"slice {fragment} is unknown")
    encoding = pb.F32
    match kind:
        case "offer":
            encoding = encoding_of(state.sync.wire_up)
            reason = offers.objection(state, sender, transfer.offer)
        case "seed":
            reason = seeding.objection(state, session)
        case "held":
            encoding = base_encoding(state.sync.wire_down)
            reason = recovering.objection(state, session, transfer.held)
        case _:
            reason = f"a {kind} is out of place here"
    if reason:
        return _end(session, reason)
    if transfer.encoding != encoding:
        return _end(session, "the encoding is not the run file's")
    sender.receiving = transfer
    sender.credits.pop(fragment, None)
    element_count = state.layout.slice(state.number, fragment).element_count
    return [Accept(session, element_count, encoding)]


def verified(state: State, session: int, transfer: pb.Transfer, now: float) -> list[Effect]:
    """Whole, checksum right, all values finite: only now it counts (rule 12)."""
    sender = state.sessions.get(session)
    if sender is None:
        return []
    sender.receiving = None
    if transfer.HasField("offer"):
        return offers.completed(state, sender, transfer.offer, now)
    if transfer.HasField("held"):
        return recovering.arrived(state, session, transfer.held)
    return seeding.arrived(state, session, transfer.seed)


def rejected(state: State, session: int, reason: str) -> list[Effect]:
    """Truncated, corrupt, not finite, another digest: that session ends and nothing else."""
    recovering.rejected(state, session)
    return _end(session, reason)


def slice_of(transfer: pb.Transfer) -> int:
    """The slice that a transfer from a learner names."""
    match transfer.WhichOneof("kind"):
        case "offer":
            return transfer.offer.slice
        case "held":
            return transfer.held.version.slice
    return transfer.seed.slice


def _end(session: int, reason: str) -> list[Effect]:
    return [end_session(session, pb.BAD_TRANSFER, reason)]
