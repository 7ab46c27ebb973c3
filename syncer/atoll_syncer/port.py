"""What one session is to be sent, and the lanes on which its transfers go.

A session has as many Bulk streams, its *lanes*, as its Join says (docs/protocol.md, rule 34). Each
slice goes over all of them, a part on each, and each lane has a mailbox of its own: the slices
whose part it has still to send. So a slow lane holds up no other one.

A version is composed when the first lane is free for it (`Sending`): it gets its number, and is
either whole or a difference to what the receiver holds. Every lane sends its part of that same
composition. Where one is composed again before all lanes have taken the last one, all take the new
one; the receiver drops what it has of the older.

On a lane the numbers of transfers grow (rule 33), though lanes ask for their slices in orders of
their own. So a lane first sends its parts of what other lanes have begun, the oldest first.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.frames import Buffer
from atoll_protos.gathering import Gathering
from atoll_protos.identity import Identity

Spans = tuple[tuple[range, ...], ...]  # by lane


@dataclass(slots=True, kw_only=True)
class Lane:
    """One Bulk stream of a session."""

    lacking: dict[int, None] = field(default_factory=dict)  # slices in order of request, each once
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None  # of the stream, once it is open
    newest: int = 0  # number of its newest transfer


@dataclass(slots=True, kw_only=True)
class Sending:
    """A version as it is sent to this session."""

    number: int  # of the transfer, in the session
    head: pb.Transfer  # with the byte count of the whole
    data: Buffer
    spans: Spans
    left: set[int]  # lanes that have not taken their part


class SessionPort:
    """What one session is to be sent: ordered control messages, and the slices that it lacks."""

    def __init__(self, secret: str = "", peer: Identity | None = None, lanes: int = 1) -> None:
        self.secret = secret  # of its Welcome
        self.peer = peer  # who has opened it; None in plain text
        self.control: deque[pb.ToLearner] = deque()
        self.control_ready = asyncio.Event()
        self.welcomed = asyncio.Event()
        self.lanes = [Lane() for _ in range(lanes)]
        self.sendings: dict[int, Sending] = {}  # by slice
        self.transfers = 0  # so far: the number of the newest
        self.parts: deque[tuple[str, pb.Companion]] = deque()  # object and head, for an observer
        self.incoming: Gathering | None = None  # made with the first lane
        self.ended = False
        self.bulk_over = asyncio.Event()  # a lane ended by itself, so the session must end too

    def send(self, message: pb.ToLearner) -> None:
        """See outside.Port; a newer tick replaces an unsent older one."""
        if message.HasField("welcome"):
            message.welcome.secret, message.welcome.lanes = self.secret, len(self.lanes)
            self.welcomed.set()
        if message.HasField("tick") and self.control and self.control[-1].HasField("tick"):
            self.control.pop()
        self.control.append(message)
        self.control_ready.set()

    def publish(self, fragment: int) -> None:
        """See outside.Port."""
        for lane in self.lanes:
            lane.lacking[fragment] = None
            lane.ready.set()

    def publish_companion(self, objects: Sequence[str], *, changed: bool) -> None:
        """See outside.Port."""
        for part, name in enumerate(objects):
            self.parts.append((name, pb.Companion(changed=changed, part=part)))
        self.lanes[0].ready.set()

    def end(self, end: pb.End) -> None:
        """See outside.Port."""
        if not self.ended:
            self.send(pb.ToLearner(end=end))
            self.ended = True

    @property
    def closed_lanes(self) -> list[int]:
        """Those that have not been opened."""
        return [number for number, lane in enumerate(self.lanes) if lane.task is None]

    def next_number(self) -> int:
        """Of one more transfer to this session."""
        self.transfers += 1
        return self.transfers

    def take(self, lane: int) -> int:
        """The slice of which this lane sends a part next, of those that its receiver lacks."""
        own = self.lanes[lane]
        begun = (each for each in self.sendings.items() if lane in each[1].left)
        order = {fragment: sending.number for fragment, sending in begun}
        fragment = min(own.lacking, key=lambda each: order.get(each, self.transfers + 1))
        del own.lacking[fragment]
        return fragment

    def sending(
        self,
        lane: int,
        publish: pb.Publish,
        compose: Callable[[], tuple[pb.Transfer, Buffer, Spans]],
    ) -> Sending:
        """The version of which this lane sends its part now: the newest, one for all lanes."""
        fragment, own = publish.version.slice, self.lanes[lane]
        known = self.sendings.get(fragment)
        if known is not None and not (lane in known.left and _is_of(known, publish)):
            known = None
        if known is None or known.number < own.newest:
            head, data, spans = compose()
            left = set(range(len(self.lanes)))
            number = self.next_number()
            known = Sending(number=number, head=head, data=data, spans=spans, left=left)
            self.sendings[fragment] = known
            self.publish(fragment)  # also on the lanes that have sent their part of an older one
            own.lacking.pop(fragment)
        own.newest = known.number
        known.left.discard(lane)
        if not known.left:
            del self.sendings[fragment]
        return known


def _is_of(sending: Sending, publish: pb.Publish) -> bool:
    """Whether it is of this version, and not of one before."""
    return sending.head.publish.version == publish.version
