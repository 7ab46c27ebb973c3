"""Rules 32 and 33: slices that are cut into parts, and transfers that come in parts."""

from dataclasses import dataclass
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import Kind, decode_frame
from atoll_syncer.model.log import Committed, Entry
from sim import payloads
from sim.channel import Lane
from sim.checkers.lanes import Session, SessionsWatcher
from sim.symbols import merge, norms_of
from sim.watch import Watcher
from sim.world import World


@dataclass(slots=True, kw_only=True)
class Sent:
    """A part that one lane sends: what it is of, and how many of its bytes have gone."""

    head: pb.Transfer
    number: int  # of the transfer
    byte_count: int = 0


class PartsWatcher(SessionsWatcher):
    """What is sent on several lanes, part by part."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sent: dict[tuple[Session, int, int], Sent] = {}  # the newest: by session, lane, side

    def frame_sent(self, lane: Lane, side: int, frame: bytes) -> None:
        if not self.is_its_own(lane):
            return
        stream = (lane.shard.name, lane.session), lane.number, side
        said = decode_frame(frame)
        if said.kind is Kind.HEAD:
            head = pb.Transfer.FromString(bytes(said.payload))
            part = Sent(head=head, number=said.transfer)
            self.part_begins(lane, side, part, self.sent.get(stream))
            self.sent[stream] = part
        elif said.kind is Kind.CHUNK:
            part = self.sent[stream]
            self.bytes_follow(lane, part, said.payload)
            part.byte_count += len(said.payload)
        else:
            self.part_ends(lane, self.sent[stream])

    def part_begins(self, lane: Lane, side: int, part: Sent, last: Sent | None) -> None:
        """Its head is sent; `last` is the part before it on this lane."""

    def bytes_follow(self, lane: Lane, part: Sent, data: memoryview) -> None:
        """Some of its values are sent."""

    def part_ends(self, lane: Lane, part: Sent) -> None:
        """Its trailer is sent."""


class PlacesChecker(PartsWatcher):
    """Rule 32: lane k of N has the bytes from floor(k B / N) on of B, and no others."""

    rule = "32"

    def bytes_follow(self, lane: Lane, part: Sent, data: memoryview) -> None:
        places, count = self._places(lane, part), len(data)
        begun = places.start + part.byte_count
        self.require(begun + count <= places.stop, f"lane {lane.number} sends more: {part.head}")
        number = payloads.number_of(data, range(begun, begun + count))
        right = bytes(data) == payloads.written(number, part.head.byte_count)[begun : begun + count]
        self.require(right, f"lane {lane.number} has values of other elements: {part.head}")

    def part_ends(self, lane: Lane, part: Sent) -> None:
        whole = part.byte_count == len(self._places(lane, part))
        self.require(whole, f"lane {lane.number} sends {part.byte_count} bytes of {part.head}")

    def arrived(self, whole: bool) -> None:
        self.require(whole, "values lie elsewhere than their elements")

    def _places(self, lane: Lane, part: Sent) -> range:
        count, lanes = part.head.byte_count, self.lanes[lane.shard.name, lane.session]
        return range(lane.number * count // lanes, (lane.number + 1) * count // lanes)


class NormsChecker(Watcher):
    """Rule 32: a version follows from its parent and its offers alone, however they have come."""

    rule = "32 (norms)"

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if not isinstance(entry, Committed) or not entry.participants:
            return
        value = self.world.values[entry.digest]
        if value.parent is None or not value.merged:
            return
        norms = norms_of(self.world.layout.slice(shard, entry.slice))
        again = merge(value.parent, value.merged, (norms,) * len(value.merged), exact=value.exact)
        same = again.digest == entry.digest
        self.require(same, f"slice {entry.slice} of shard {shard}: {value} is not {again}")


class TransferChecker(PartsWatcher):
    """Rule 33: all parts of a transfer are of one capture or version, and all of them are there."""

    rule = "33"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.heads: dict[tuple[Session, int, int], pb.Transfer] = {}  # by session, side, number
        self.symbols: dict[tuple[Session, int], int] = {}

    def part_begins(self, lane: Lane, side: int, part: Sent, last: Sent | None) -> None:
        grows = last is None or last.number < part.number
        self.require(grows, f"lane {lane.number} sends transfer {part.number} after {last}")
        session = lane.shard.name, lane.session
        first = self.heads.setdefault((session, side, part.number), part.head)
        self.require(first == part.head, f"transfer {part.number} is of {first} and {part.head}")

    def arrived(self, whole: bool) -> None:
        self.require(whole, "a transfer lacks a part, or has parts of two")
