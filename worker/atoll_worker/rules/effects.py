"""What a learner's rules ask the transport process to do; it does so in order.

A value of a slice is named by (shard, fragment, number). It is a *candidate* from its arrival until
Promote makes it the *base*, or Discard drops it.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link import messages

# ---------------------------------------------------------------- to the shards


@dataclass(frozen=True, slots=True)
class Dial:
    """Open the streams to a shard. The driver answers with `connected` and `disconnected`."""

    shard: int


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the streams to a shard."""

    shard: int
    reason: str = "hung up"


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a control message. An unsent report may be replaced by a newer one."""

    shard: int
    message: pb.ToShard


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Form base - theta from the capture region now and send it, or call `capture_lost`."""

    shard: int
    offer: pb.Offer


@dataclass(frozen=True, slots=True)
class SendSeed:
    """Send the model's initial values of all slices of a shard (rule 1)."""

    shard: int


@dataclass(frozen=True, slots=True)
class SendHeld:
    """Send the base of one slice as it is held, bit for bit (rule 22)."""

    shard: int
    held: pb.Held


# ---------------------------------------------------------------- values kept by the transport


@dataclass(frozen=True, slots=True)
class Place:
    """Copy a candidate into the slice's adopt region of the shared memory."""

    shard: int
    fragment: int
    number: int


@dataclass(frozen=True, slots=True)
class Promote:
    """The training process has adopted the candidate: it replaces the slice's base."""

    shard: int
    fragment: int
    number: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Free a candidate: a newer one has arrived."""

    shard: int
    fragment: int
    number: int


# ---------------------------------------------------------------- to the training process, to disk


@dataclass(frozen=True, slots=True)
class Command:
    """Send a command over the link; it is carried out at the next step boundary."""

    command: messages.Command


@dataclass(frozen=True, slots=True)
class Record:
    """Write one line of the learner's telemetry."""

    fields: dict[str, Any]


Effect: TypeAlias = (
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
