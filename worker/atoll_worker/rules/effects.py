"""What a learner's rules ask the transport process to do; it does so in order.

A value of a slice is a *candidate* from its arrival until Promote makes it the *base*, or Discard
drops it.
"""

from dataclasses import dataclass
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Message


class Effect:
    """One of the classes below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Dial(Effect):
    """Open the streams to a shard. The driver answers with `connected` and `disconnected`."""

    shard: int


@dataclass(frozen=True, slots=True)
class HangUp(Effect):
    """Close the streams to a shard."""

    shard: int
    reason: str = "hung up"


@dataclass(frozen=True, slots=True)
class SendMessage(Effect):
    """Send a control message. An unsent report may be replaced by a newer one."""

    shard: int
    message: pb.ToShard


@dataclass(frozen=True, slots=True)
class SendOffer(Effect):
    """Form base - theta from the capture region now and send it, or call `capture_lost`."""

    shard: int
    offer: pb.Offer


@dataclass(frozen=True, slots=True)
class SendSeed(Effect):
    """Send the model's initial values of all slices of a shard (rule 1)."""

    shard: int


@dataclass(frozen=True, slots=True)
class SendHeld(Effect):
    """Send the base of one slice as it is held, bit for bit (rule 22)."""

    shard: int
    held: pb.Held


@dataclass(frozen=True, slots=True)
class _OfValue(Effect):
    shard: int
    fragment: int
    number: int


class PlaceValue(_OfValue):
    """Copy a candidate into the slice's adopt region of the shared memory."""


class Promote(_OfValue):
    """The training process has adopted the candidate: it replaces the slice's base."""


class Discard(_OfValue):
    """Free a candidate: a newer one has arrived."""


@dataclass(frozen=True, slots=True)
class Command(Effect):
    """Send a command over the link; it is carried out at the next step boundary."""

    command: Message


@dataclass(frozen=True, slots=True)
class TelemetryRecord(Effect):
    """Write one line of the learner's telemetry."""

    fields: dict[str, Any]
