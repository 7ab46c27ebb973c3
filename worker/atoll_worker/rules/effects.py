"""What a learner's rules ask of the transport process; performed in order."""

from dataclasses import dataclass
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Adopt, Capture, Fail, Finished, Proceed, Start, Tick


@dataclass(frozen=True, slots=True)
class Dial:
    """Open both streams to a shard."""

    shard: int


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close both streams to a shard."""

    shard: int


@dataclass(frozen=True, slots=True)
class SendMessage:
    """A control message to a shard."""

    shard: int
    message: pb.ToShard


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Form base - theta from the capture region now, and send it, or say `capture_lost`."""

    shard: int
    offer: pb.Offer


@dataclass(frozen=True, slots=True)
class SendSeed:
    """Send the model's first values of all slices of a shard (rule 1)."""

    shard: int


@dataclass(frozen=True, slots=True)
class SendHeld:
    """Send the base of one slice as it is held, bit for bit (rule 22)."""

    shard: int
    held: pb.Held


@dataclass(frozen=True, slots=True)
class Place:
    """Put a candidate into the slice's adopt region."""

    shard: int
    fragment: int
    number: int


@dataclass(frozen=True, slots=True)
class Promote:
    """The candidate was adopted: it is the base now."""

    shard: int
    fragment: int
    number: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget a candidate."""

    shard: int
    fragment: int
    number: int


@dataclass(frozen=True, slots=True)
class Command:
    """To the training process."""

    command: Adopt | Capture | Fail | Finished | Proceed | Start | Tick


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the learner's telemetry."""

    fields: dict[str, Any]


Effect = (
    Dial
    | HangUp
    | SendMessage
    | SendOffer
    | SendSeed
    | SendHeld
    | Place
    | Promote
    | Discard
    | Command
    | Record
)
