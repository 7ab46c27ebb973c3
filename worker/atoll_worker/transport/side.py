"""What the head of a learner and its lane processes say to each other: the side channel's messages.

A learner on several hosts has lanes on each of them. One process of each host holds that host's
share of every slice, and a *lane process* (a *hand*) beside it carries these parts over Bulk
streams of its own. The head knows the rules and has the control streams; it tells the hands what to
do. Each hand has one TCP stream to the head, which is plain text as the streams between ranks are:
both ends are in one region's network. Values of the model never pass through it.

      head's transport                                         lane process of another host
    +---------------------+    Opened, Prepare, Numbered,    +------------------------------+
    |  Exchange (rules)   |    Keep, Place, Promote ...      |  Values of its share         |
    |  Values of its share| ===============================> |  Bulk streams to the shards  |
    |  Hands              | <=============================== |                              |
    +---------------------+    Prepared, Verified, Placed ...+------------------------------+

Messages are frozen values, written as those of the link are (link/codec.py): no code travels. They
arrive in order, so that what a hand holds is what the head has told it to hold.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias, get_args

from atoll_worker.link.codec import Codec

HELLO_BYTES_MAX: Final = 4096  # before anything of the other end is believed
BEAT_SECONDS: Final = 2.0


class Kind(StrEnum):
    """What is prepared to be sent."""

    OFFER = "offer"
    SEED = "seed"
    HELD = "held"


# ---------------------------------------------------------------- both ways


@dataclass(frozen=True, slots=True)
class Beat:
    """Nothing has happened, and this process is there."""


@dataclass(frozen=True, slots=True)
class Left:
    """This process ends in order: the end of its stream is no loss."""


# ---------------------------------------------------------------- hand -> head


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message: which lanes of how many this hand has."""

    secret: str = field(repr=False)
    first: int
    stop: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What Prepare asked for is there; or it is `lost`: a capture was overwritten."""

    order: int
    lost: bool = False
    not_finite: tuple[str, ...] = ()  # tensors of which this hand has such values


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """This hand's parts of a Publish have come with the right checksums."""

    shard: int
    opening: int  # of the session
    fragment: int
    number: int  # of the transfer
    digest: str  # of the whole transfer's head


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The value of that Place is in the adopt region."""

    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesLost:
    """The lanes of a session have ended. With a `remedy` no dialling helps."""

    shard: int
    opening: int  # of the session
    reason: str
    remedy: str = ""


# ---------------------------------------------------------------- head -> hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A shard has taken the learner: open your lanes of this session.

    A shard that was started again counts its sessions from 1. `opening` is the head's number, which
    no two sessions have, so that what comes late of one is not taken for another's.
    """

    shard: int
    opening: int
    session: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The session with a shard is over; what was prepared for it or came in it is forgotten."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Form what is to be sent of these slices: nothing is sent before its Numbered.

    An offer is formed on the base that is held now, from the capture of this count: the hand waits
    until its training process has told of that capture. Seeds and held versions are as they are.
    """

    order: int  # names this Prepare
    what: Kind
    shard: int
    fragments: tuple[int, ...]
    capture: int = 0  # the region's counter after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """Send your parts of this slice under the transfer's number, with its head."""

    order: int  # of the Prepare
    shard: int
    fragment: int
    number: int
    head: bytes  # of the whole transfer, serialized


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What was prepared is not sent."""

    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """All parts of that transfer have come everywhere: decode yours, and keep it as a candidate."""

    shard: int
    fragment: int
    number: int  # of the transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """That transfer will not become whole: a newer one has come."""

    shard: int
    fragment: int
    number: int  # of the transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Copy a candidate into the adopt region once the training process has left the region."""

    order: int  # names this Place
    shard: int
    fragment: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """The learner has adopted that candidate: it is the base now."""

    shard: int
    fragment: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """That candidate is not needed."""

    shard: int
    fragment: int
    version: int


FromHand: TypeAlias = Beat | Left | Hello | Prepared | Verified | Placed | LanesLost
FromHead: TypeAlias = (
    Beat
    | Left
    | Opened
    | Closed
    | Prepare
    | Numbered
    | Drop
    | Keep
    | Forget
    | Place
    | Promote
    | Discard
)
Message: TypeAlias = FromHand | FromHead

SIDE: Final = Codec(get_args(Message))
