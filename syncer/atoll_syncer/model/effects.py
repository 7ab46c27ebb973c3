"""What a shard's rules ask of the outside; the driver performs the effects in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import REFUSALS
from atoll_syncer.model.log import Entry, Participant


class Effect:
    """One thing to be done."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """A control message to one session."""

    session: int
    message: pb.ToLearner


@dataclass(frozen=True, slots=True)
class EndSession(Effect):
    """Send End (in answer to a Join it is the refusal) and close both streams."""

    session: int
    end: pb.End


@dataclass(frozen=True, slots=True)
class Accept(Effect):
    """The transfer that has just begun may be received."""

    session: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class OfOffer(Effect):
    """The name of a staged offer; `capture` is the learner's step count at which it was taken."""

    slot: str
    incarnation: int
    slice: int
    capture: int


class Stage(OfOffer):
    """Keep the offer that was just verified, under this name, until it is merged or dropped."""

    __slots__ = ()


class Drop(OfOffer):
    """Forget a staged offer: a newer capture or incarnation has taken its place."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Append(Effect):
    """Create the log's next entry, durably; `Shard.appended` follows, in order (rule 19)."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class MergeOffers(Effect):
    """Merge staged offers in this order, write version and data states; then `Shard.merged`."""

    slice: int
    participants: tuple[Participant, ...]
    momentum: float  # of the outer step
    data_states: Mapping[str, bytes] = field(default_factory=dict)
    last: bool = False  # as far as is known now: its base is not rounded by the wire


@dataclass(frozen=True, slots=True)
class StoreSeed(Effect):
    """Write the seeds that this session sent as version 0; `Shard.seeded` follows (rule 1)."""

    session: int


class RestoreEffect(Effect):
    """Something stored is read back (duties/checkpointing)."""


@dataclass(frozen=True, slots=True)
class FindCheckpoint(RestoreEffect):
    """Read what the newest checkpoint of a place says; `Shard.checkpoint_found` follows.

    `mine` first looks for one that a run of this job has left, which is gone (rule 43). With
    neither, `Shard.no_checkpoint` follows.
    """

    place: str  # its URL; empty: the job's own place alone
    run: str  # that begins with it
    mine: bool = False


@dataclass(frozen=True, slots=True)
class RestoreSeed(RestoreEffect):
    """Write version 0 from the history's checkpoint; `Shard.seeded` follows (rule 43)."""


@dataclass(frozen=True, slots=True)
class StoreHeld(Effect):
    """Write what a session sent as version `number`, with zero momentum; then `Shard.merged`."""

    slice: int
    session: int
    number: int


@dataclass(frozen=True, slots=True)
class StorePrevious(RestoreEffect):
    """Write the version before the head as `number`; `Shard.merged` or `previous_lost` follows."""

    slice: int
    number: int


@dataclass(frozen=True, slots=True)
class PublishHead(Effect):
    """The session lacks this slice's head; an unsent older version of it need not be sent."""

    session: int
    slice: int


@dataclass(frozen=True, slots=True)
class SetModel(Effect):
    """The model is known: allocate memory for its layout."""

    model: pb.Model


@dataclass(frozen=True, slots=True)
class Ask(Effect):
    """A call to the registrar, from the other shards; `Shard.answered` follows."""

    request: pb.HelloRequest | pb.MarkBegunRequest | pb.ReportFinalRequest


@dataclass(frozen=True, slots=True)
class SendReply(Effect):
    """The answer to the registrar call with this token, once the entries before it are durable."""

    token: int
    message: Any


@dataclass(frozen=True, slots=True)
class WritePart(Effect):
    """Write this shard's final slices for the export; `Shard.part_written` follows."""


@dataclass(frozen=True, slots=True)
class WriteIndex(Effect):
    """Make the export from all shards' parts; `Shard.exported` follows (registrar)."""

    parts: tuple[tuple[int, str, str], ...]  # shard, file, digest


@dataclass(frozen=True, slots=True)
class TapeLine(Effect):
    """One line of the event tape, with its `event` (rule 29)."""

    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EndProcess(Effect):
    """End this process."""

    code: int
    reason: str


def refuse(code: pb.Code, reason: str, remedy: str = "", *, retry: bool = False) -> pb.End:
    """Return a Join's refusal, or a session's end; `remedy` where the code's is too general.

    `retry`: the learner may dial again although the code alone does not say so (`exits.REFUSALS`).
    """
    row = REFUSALS[code]
    return pb.End(code=code, reason=reason, remedy=remedy or row.remedy, retry=retry or row.retry)


def end_session(session: int, code: pb.Code, reason: str) -> EndSession:
    return EndSession(session, refuse(code, reason))
