"""What one session is to be sent, and the lanes on which its transfers go (rule 34).

A slice goes over all lanes, a part on each; each has a mailbox of its own, so a slow one holds up
no other. A version is composed when the first lane is free for it (`Sending`), and every lane sends
its part of that same composition, or of a newer one that has taken its place.

On a lane the numbers of transfers grow (rule 33), though lanes ask for their slices in orders of
their own. So a lane first sends its parts of what other lanes have begun, the oldest first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.identity import Identity
from atoll_protos.transfer.frames import Buffer
from atoll_protos.transfer.gathering import Gathering

Spans = tuple[tuple[range, ...], ...]  # by lane


@dataclass(slots=True, kw_only=True)
class Lane:
    """One Bulk stream of a session."""

    lacking: dict[int, None] = field(default_factory=dict)  # slices in order of request, each once
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    opened: bool = False
    machine: str = ""  # that the certificate of its peer names
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
    """Ordered control messages, and the slices that the session lacks."""

    def __init__(self, secret: str = "", peer: Identity | None = None, lanes: int = 1) -> None:
        self.secret = secret  # of its Welcome
        self.peer = peer  # who has opened it; None in plain text
        self.control: deque[pb.ToLearner] = deque()
        self.control_ready = asyncio.Event()
        self.welcomed = asyncio.Event()
        self.lanes = [Lane() for _ in range(lanes)]
        self.sendings: dict[int, Sending] = {}  # by slice
        self.transfers = 0  # so far: the number of the newest
        self.incoming: Gathering | None = None  # made with the first lane
        self.ending = asyncio.Event()
        self.shut_out = False
        self.bulk_over = asyncio.Event()  # a lane ended by itself, so the session must end too
        self.closed = asyncio.Event()  # the session is over, and all lanes with it

    def send(self, message: pb.ToLearner) -> None:
        """Queue a control message; a newer tick replaces an unsent older one."""
        if message.HasField("welcome"):
            message.welcome.secret, message.welcome.lanes = self.secret, len(self.lanes)
            self.welcomed.set()
        if message.HasField("tick") and self.control and self.control[-1].HasField("tick"):
            self.control.pop()
        self.control.append(message)
        self.control_ready.set()

    def publish(self, fragment: int) -> None:
        for lane in self.lanes:
            lane.lacking[fragment] = None
            lane.ready.set()

    def end(self, end: pb.End) -> None:
        if not self.ended:
            self.send(pb.ToLearner(end=end))
            self.shut_out = end.code == pb.NOT_ALLOWED
            self.ending.set()

    @property
    def ended(self) -> bool:
        return self.ending.is_set()

    @property
    def closed_lanes(self) -> list[int]:
        return [number for number, lane in enumerate(self.lanes) if not lane.opened]

    def next_number(self) -> int:
        self.transfers += 1
        return self.transfers

    def take(self, lane: int) -> int:
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
    return sending.head.publish.version == publish.version
