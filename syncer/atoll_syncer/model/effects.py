"""What a shard's rules ask of the outside; the driver performs them in order."""

from dataclasses import dataclass
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.log import Entry, Participant


@dataclass(frozen=True, slots=True)
class Send:
    """A control message to one session."""

    session: int
    message: pb.ToLearner


@dataclass(frozen=True, slots=True)
class EndSession:
    """Say End (to a Join it is the refusal) and close both streams."""

    session: int
    end: pb.End


@dataclass(frozen=True, slots=True)
class Accept:
    """The transfer that just began may be received; answer of `transfer_started`."""

    session: int
    element_count: int
    encoding: pb.Encoding


@dataclass(frozen=True, slots=True)
class Stage:
    """Keep a verified offer under this name until it is merged or dropped."""

    slot: str
    incarnation: int
    slice: int
    capture: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a staged offer."""

    slot: str
    incarnation: int
    slice: int
    capture: int


@dataclass(frozen=True, slots=True)
class Append:
    """Create the log's next entry; `Shard.appended` follows, in order (rule 19)."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge staged offers onto the head, in this order, and write its objects (rule 12)."""

    slice: int
    participants: tuple[Participant, ...]


@dataclass(frozen=True, slots=True)
class StoreSeed:
    """Write the received seeds of all slices as version 0 (rule 1)."""

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
    """The session lacks this slice's head; a newer request replaces an unsent older one."""

    session: int
    slice: int


@dataclass(frozen=True, slots=True)
class SetModel:
    """The model is known: memory for the layout may be made."""

    model: pb.Model


@dataclass(frozen=True, slots=True)
class Ask:
    """A call to the registrar (shards above 0); `Shard.answered` follows."""

    request: pb.HelloRequest | pb.MarkBegunRequest | pb.ReportFinalRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a registrar call that came with this token."""

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
    """One line of the event tape (rule 29)."""

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
    | SetModel
    | Ask
    | Reply
    | WritePart
    | WriteIndex
    | Tape
    | Exit
)
