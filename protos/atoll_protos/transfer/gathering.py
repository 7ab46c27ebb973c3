"""The transfers of a session in one direction, put together from the stripes on its lanes.

A session may have several *lanes*, Bulk streams on connections of their own. Every transfer goes
over all of them, one transfer after another: `frames.stripe` says which of its bytes a lane carries
(rules 32 and 33). There is one transfer under way, in one buffer: a lane whose stripe is here waits
for the others (`turn`), and its sender by flow control.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import Assembler, FrameError, Whole, check_length, stripe


class Gathering:
    """The lanes of a session in one direction; `admit` as an Assembler asks it, once a transfer."""

    def __init__(self, lanes: int, admit: Callable[[pb.Transfer], int | None]) -> None:
        self.lanes, self._admit = lanes, admit
        self.head: pb.Transfer | None = None  # of the transfer under way
        self.transfers = 0  # that have begun
        self._data = bytearray()
        self._missing = set[int]()  # lanes whose stripes are not here
        self._whole = asyncio.Event()
        self._assemblers = [Assembler(partial(self._begun, lane)) for lane in range(lanes)]

    def owes(self, lane: int) -> bool:
        """Whether a transfer is under way whose stripe of this lane is not here."""
        return self.head is not None and lane in self._missing

    async def turn(self, lane: int) -> None:
        """Return when the next frame of a lane may be read."""
        while self.head is not None and lane not in self._missing:
            await self._whole.wait()

    def feed(self, lane: int, frame: bytes) -> Whole | None:
        """Take one frame of a lane; returns the transfer that it completes. Raises FrameError."""
        if self._assemblers[lane].feed(frame) is None:
            return None
        self._missing.discard(lane)
        if self._missing or self.head is None:
            return None
        whole = Whole(self.head, self._data)
        self.head, self._data = None, bytearray()
        self._whole.set()
        return whole

    def _begun(self, lane: int, head: pb.Transfer) -> memoryview | None:
        if self.head is None:
            byte_count = self._admit(head)
            if byte_count is None:
                return None
            check_length(head, byte_count)
            self.head, self._data = head, bytearray(byte_count)
            self.transfers += 1
            self._missing = set(range(self.lanes))
            self._whole.clear()
        elif lane not in self._missing:
            raise FrameError(f"lane {lane}: a transfer begins before the one before is whole")
        elif head != self.head:
            raise FrameError(f"lane {lane}: the transfer has another head on other lanes")
        part = stripe(len(self._data), self.lanes, lane)
        return memoryview(self._data)[part.start : part.stop]
