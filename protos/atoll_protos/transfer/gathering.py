"""The transfers of one session in one direction, put together from the parts on its lanes.

Parts arrive in any order against each other, and a lane may be several transfers ahead. All parts
of a transfer have its number, which the sender counts up; on a lane the numbers grow (rule 33):

    number = that of the slice's open transfer   it is one more part of it; the heads must be equal
    number > ...                                 the first part of a newer transfer, which drops the
                                                 older one: parts of two captures never meet
    number < ...                                 of one that was dropped: read, and thrown away

Only a first part is asked about (`admit`): it takes the credit and reserves the memory of the
whole, one buffer for each slice at most. A transfer of no slice (a part of a companion) is not
divided: lane 0 has it alone. With one lane numbers are not looked at. A process that has some of
the lanes only (a `Share`) gathers what it holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.division import Share, span_bytes
from atoll_protos.transfer.frames import Assembler, FrameError, Whole

Key = tuple[str, int]  # what a transfer is of: kind and slice


@dataclass(slots=True, kw_only=True)
class Open:
    """A transfer of which a part has begun."""

    number: int
    head: pb.Transfer  # of its first part, with the byte count of the whole
    data: bytearray | None  # None: a newer one has taken its place
    spans: tuple[tuple[range, ...], ...]  # by lane, in what is held here
    missing: set[int]  # own lanes whose parts are not verified


@dataclass(slots=True)
class Part:
    """See frames.Destination: a part's bytes on their way to their places in the whole."""

    whole: Open | None  # None: nobody needs it
    spans: tuple[range, ...]
    byte_count: int = field(init=False)

    def __post_init__(self) -> None:
        self.byte_count = span_bytes(self.spans)

    def write(self, offset: int, chunk: memoryview) -> None:
        if self.whole is None or self.whole.data is None:
            return
        for span in self.spans:
            if not chunk:
                return
            if offset < len(span):
                here = chunk[: len(span) - offset]
                begin = span.start + offset
                self.whole.data[begin : begin + len(here)] = here
                chunk, offset = chunk[len(here) :], 0
            else:
                offset -= len(span)


class Gathering:
    """`admit(head)` says how many bytes the whole transfer must have, or None to refuse it.

    `form` gives the Form of the slice that an admitted head names, None where it is of no slice.
    `share` are the lanes that end here, by default all.
    """

    def __init__(
        self,
        lanes: int,
        admit: Callable[[pb.Transfer], int | None],
        form: Callable[[pb.Transfer], Form | None],
        share: Share | None = None,
    ) -> None:
        self.lanes, self._admit, self._form = lanes, admit, form
        self._share = share or Share(0, lanes, lanes)
        self._open: dict[Key, Open] = {}
        self._newest: dict[Key, int] = {}  # number of the newest transfer
        self._last = [0] * lanes  # by lane: number of its newest part
        self._parts: list[Part | None] = [None] * lanes  # under way
        self._assemblers = [Assembler(partial(self._begun, lane)) for lane in range(lanes)]

    def feed(self, lane: int, frame: bytes) -> Whole | None:
        """Take one frame of a lane; returns the transfer that it completes. Raises FrameError."""
        if self._assemblers[lane].feed(frame) is None:
            return None
        part, self._parts[lane] = self._parts[lane], None
        assert part is not None, "a part ended that has not begun"
        return self._verified(lane, part)

    def head(self, lane: int) -> pb.Transfer | None:
        """That of the part which is under way on this lane."""
        return self._assemblers[lane].head

    def owed(self, lane: int) -> set[int]:
        """The numbers of open transfers whose parts have not begun on this lane."""
        begun = self._last[lane]
        return {each.number for each in self._open.values() if each.number > begun}

    @property
    def byte_count(self) -> int:
        return sum(len(each.data or b"") for each in self._open.values())

    def _begun(self, lane: int, head: pb.Transfer) -> Part | None:
        part = self._place(lane, head, self._assemblers[lane].transfer)
        self._parts[lane] = part
        return part

    def _place(self, lane: int, head: pb.Transfer, number: int) -> Part | None:
        if self.lanes == 1:
            return self._first(lane, head, number)
        if number <= self._last[lane]:
            last = self._last[lane]
            raise FrameError(f"lane {lane}: transfer {number} after {last}: numbers must grow")
        self._last[lane] = number
        key = key_of(head)
        whole = self._open.get(key)
        if whole is not None and whole.number == number:
            if not _is_same(whole.head, head):
                raise FrameError(f"lane {lane}: transfer {number} has another head on other lanes")
            return Part(whole, _of(lane, whole.spans))
        if number < self._newest.get(key, 0):
            return Part(None, _of(lane, self._spans(head)))
        return self._first(lane, head, number)

    def _first(self, lane: int, head: pb.Transfer, number: int) -> Part | None:
        byte_count = self._admit(head)
        if byte_count is None:
            return None
        key, spans = key_of(head), self._spans(head, byte_count)
        expected = span_bytes(_of(lane, spans))
        if head.byte_count != expected:
            raise FrameError(f"{head.byte_count} bytes, the layout says {expected}")
        if (older := self._open.pop(key, None)) is not None:
            older.data = None
        named = pb.Transfer()
        named.CopyFrom(head)
        named.byte_count = byte_count
        missing = set(self._share.lanes) if len(spans) > 1 else {0}
        data = bytearray(sum(map(span_bytes, spans)))
        whole = Open(number=number, head=named, data=data, spans=spans, missing=missing)
        self._open[key], self._newest[key] = whole, number
        return Part(whole, spans[lane])

    def _spans(
        self, head: pb.Transfer, byte_count: int | None = None
    ) -> tuple[tuple[range, ...], ...]:
        """By lane: which bytes of the whole come on it; one lane only for what is not divided."""
        form = None if self.lanes == 1 else self._form(head)
        if form is None:
            return ((range(head.byte_count if byte_count is None else byte_count),),)
        try:
            return self._share.spans(form, head.encoding)
        except ValueError as error:
            raise FrameError(str(error)) from error

    def _verified(self, lane: int, part: Part) -> Whole | None:
        whole = part.whole
        if whole is None or whole.data is None:
            return None
        whole.missing.discard(lane)
        if whole.missing:
            return None
        del self._open[key_of(whole.head)]
        return Whole(whole.head, whole.data, whole.number)


def key_of(head: pb.Transfer) -> Key:
    """What a transfer is of; two of one key never come at the same time."""
    match head.WhichOneof("kind"):
        case "offer":
            return "offer", head.offer.slice
        case "seed":
            return "seed", head.seed.slice
        case "held":
            return "held", head.held.version.slice
        case "publish":
            return "publish", head.publish.version.slice
    return str(head.WhichOneof("kind")), 0


def _of(lane: int, spans: tuple[tuple[range, ...], ...]) -> tuple[range, ...]:
    """Raises FrameError where the transfer is not divided."""
    if lane >= len(spans):
        raise FrameError(f"lane {lane}: what belongs to no slice goes over lane 0")
    return spans[lane]


def _is_same(whole: pb.Transfer, head: pb.Transfer) -> bool:
    named = pb.Transfer()
    named.CopyFrom(head)
    named.byte_count = whole.byte_count
    return named == whole
