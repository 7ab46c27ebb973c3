"""What a shard's rules ask of the outside; the driver performs the effects in order.

`refuse` and `end_session` are here too: every refusal has a code, a reason, a remedy, and tells
whether trying again helps (rule 3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS
from atoll_syncer.model.log import Entry, Participant


@dataclass(frozen=True, slots=True)
class Send:
    """A control message to one session."""

    session: int
    message: pb.ToLearner


@dataclass(frozen=True, slots=True)
class EndSession:
    """Send End (in answer to a Join it is the refusal) and close both streams."""

    session: int
    end: pb.End


@dataclass(frozen=True, slots=True)
class Accept:
    """The transfer that has just begun may be received; the answer to `transfer_started`."""

    session: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class PublishCompanion:
    """An observer wants the companion, whose parts are these objects."""

    session: int
    objects: tuple[str, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """Keep the offer that was just verified, under this name, until it is merged or dropped."""

    slot: str
    incarnation: int
    slice: int
    capture: int  # the learner's step count at which it was taken


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a staged offer: a newer capture or incarnation has taken its place."""

    slot: str
    incarnation: int
    slice: int
    capture: int


@dataclass(frozen=True, slots=True)
class Append:
    """Create the log's next entry, durably; `Shard.appended` follows, in order (rule 19)."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge staged offers onto the head, summed in this order, and write the new version's object.

    The data states, by slot, are written as well, in one object. `Shard.merged` follows (rule 12).
    """

    slice: int
    participants: tuple[Participant, ...]
    momentum: float  # of the outer step
    data_states: Mapping[str, bytes] = field(default_factory=dict)
    last: bool = False  # as far as is known now: its base is not rounded by the wire


@dataclass(frozen=True, slots=True)
class StoreSeed:
    """Write the seeds that this session sent as version 0; `Shard.seeded` follows (rule 1)."""

    session: int


@dataclass(frozen=True, slots=True)
class StoreHeld:
    """Write the base that a session sent as master of version `number`, with zero momentum.

    `Shard.merged` follows (rule 22).
    """

    slice: int
    session: int
    number: int


@dataclass(frozen=True, slots=True)
class PublishHead:
    """The session lacks this slice's head; an unsent older version of it need not be sent."""

    session: int
    slice: int


@dataclass(frozen=True, slots=True)
class SetModel:
    """The model is known: allocate memory for its layout."""

    model: pb.Model


@dataclass(frozen=True, slots=True)
class Ask:
    """A call to the registrar, from the other shards; `Shard.answered` follows."""

    request: pb.HelloRequest | pb.MarkBegunRequest | pb.ReportFinalRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the registrar call with this token, once the entries before it are durable."""

    token: int
    message: Any


@dataclass(frozen=True, slots=True)
class WritePart:
    """Write this shard's final slices for the export; `Shard.part_written` follows."""


@dataclass(frozen=True, slots=True)
class WriteIndex:
    """Make the export from all shards' parts; `Shard.exported` follows (registrar)."""

    parts: tuple[tuple[int, str, str], ...]  # shard, file, digest


@dataclass(frozen=True, slots=True)
class Tape:
    """One line of the event tape, with its `event` (rule 29)."""

    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exit:
    """End this process."""

    code: int
    reason: str


Effect = (
    Send
    | EndSession
    | Accept
    | Stage
    | Drop
    | Append
    | Merge
    | StoreSeed
    | StoreHeld
    | PublishHead
    | PublishCompanion
    | SetModel
    | Ask
    | Reply
    | WritePart
    | WriteIndex
    | Tape
    | Exit
)


def refuse(code: pb.Code, reason: str, remedy: str = "", *, retry: bool = False) -> pb.End:
    """A refusal of a Join, or the end of a session; `remedy` where the code's own is too general.

    Whether the learner may dial again goes with the code (`exits.REFUSALS`); `retry` says that it
    may although the code alone does not.
    """
    row = REFUSALS[code]
    return pb.End(code=code, reason=reason, remedy=remedy or row.remedy, retry=retry or row.retry)


def end_session(session: int, code: pb.Code, reason: str) -> EndSession:
    """A session ends, with the remedy that goes with the code."""
    return EndSession(session, refuse(code, reason))
