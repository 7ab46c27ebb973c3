"""Bugs in sessions of several lanes (rules 32 to 34)."""

from itertools import pairwise
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import parts
from atoll_protos.codecs import Form
from atoll_protos.frames import Whole
from atoll_protos.gathering import Gathering, Open, Part, key_of
from atoll_syncer import service
from atoll_syncer.bulk import BulkStreams
from atoll_syncer.driver import Driver
from atoll_syncer.model.roster import Slot
from atoll_syncer.port import SessionPort
from atoll_worker.transport import client
from sim.shard_values import ShardValues
from sim.symbols import Norms

Patch = pytest.MonkeyPatch


def parts_that_cut_blocks(patch: Patch) -> None:
    """Rule 32: equal parts, wherever the blocks of a codec begin."""

    def equal(form: Form, count: int) -> tuple[int, ...]:
        return tuple(form.element_count * part // count for part in range(count + 1))

    patch.setattr(parts, "part_edges", equal)


def parts_that_lie_in_the_order_of_their_arrival(patch: Patch) -> None:
    """Rule 32: where two have as many bytes, the one that begins first is put first."""
    place = Gathering._place

    def next_in_line(self: Gathering, lane: int, head: pb.Transfer, number: int) -> Part | None:
        known = self._open.get(key_of(head))
        part = place(self, lane, head, number)
        if part is not None and part.whole is not None and part.whole is not known:
            free = [s for s in part.whole.spans if sum(map(len, s)) == part.byte_count]
            part.spans = free[0]
        return part

    patch.setattr(Gathering, "_place", next_in_line)


def norms_of_each_part(patch: Patch) -> None:
    """Rule 32: an offer that comes in parts gets the norms of its parts."""
    transferred, norms = Driver.transferred, ShardValues.norms
    lanes: dict[int, int] = {}  # of the session that has sent an offer

    async def told(self: Driver, session: int, head: pb.Transfer, payload: bytearray) -> None:
        port = self.ports.get(session)
        lanes[id(head)] = len(port.lanes) if isinstance(port, SessionPort) else 1
        await transferred(self, session, head, payload)

    def of_parts(self: ShardValues, head: pb.Transfer) -> Norms:
        owned = self.layout.slice(self.process.number, head.offer.slice)
        edges = parts.part_edges(owned.form, lanes[id(head)])
        cut = (
            range(max(norm.start, first), min(norm.stop, stop))
            for norm in norms(self, head)
            for first, stop in pairwise(edges)
        )
        return tuple(norm for norm in cut if norm)

    patch.setattr(Driver, "transferred", told)
    patch.setattr(ShardValues, "norms", of_parts)


def transfers_that_lack_a_part(patch: Patch) -> None:
    """Rule 33: one that has begun on every lane but one counts as whole."""
    verified = Gathering._verified

    def hasty(self: Gathering, lane: int, part: Part) -> Whole | None:
        if part.whole is not None and len(part.whole.missing) == len(part.whole.spans) > 1:
            part.whole.missing = {lane}
        return verified(self, lane, part)

    patch.setattr(Gathering, "_verified", hasty)


def captures_whose_parts_are_mixed(patch: Patch) -> None:
    """Rule 33: a part belongs to what is open of its slice, whatever its number."""
    place = Gathering._place

    def mixed(self: Gathering, lane: int, head: pb.Transfer, number: int) -> Part | None:
        whole = self._open.get(key_of(head))
        if self.lanes > 1 and whole is not None:
            self._last[lane] = number
            return Part(whole, whole.spans[lane])
        return place(self, lane, head, number)

    patch.setattr(Gathering, "_place", mixed)


def training_with_a_lane_missing(patch: Patch) -> None:
    """Rule 34."""
    opened = Slot.open

    def whole(self: Slot, session: int, now: float, incarnation: int = 0, lanes: int = 1) -> None:
        opened(self, session, now, incarnation, lanes=1)

    patch.setattr(Slot, "open", whole)


def a_lane_that_is_waited_for_without_end(patch: Patch) -> None:
    """Rule 34."""
    patch.setattr(service, "LANES_SECONDS_MAX", 3600.0)


def a_session_that_outlives_a_lane(patch: Patch) -> None:
    """Rule 34: the end of any lane but the first is not noticed."""
    tied = BulkStreams._tied

    async def alone(self: BulkStreams, context: Any) -> tuple[int, SessionPort, int]:
        number, port, lane = await tied(self, context)
        return number, Deaf(port) if lane else port, lane  # type: ignore[return-value]

    patch.setattr(BulkStreams, "_tied", alone)


class Deaf:
    """A session's port whose lane may end."""

    def __init__(self, port: SessionPort) -> None:
        vars(self)["port"] = port
        vars(self)["ended"] = True

    def __getattr__(self, name: str) -> Any:
        """The port's."""
        return getattr(self.port, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """The port's."""
        setattr(self.port, name, value)


def a_version_adopted_without_its_last_part(patch: Patch) -> None:
    """Rule 34: a learner takes what is there in N - 1 parts."""

    class Hasty(Gathering):
        def _verified(self, lane: int, part: Part) -> Whole | None:
            if part.whole is not None and lane + 1 < self.lanes:
                self._give_up(part.whole)
            return super()._verified(lane, part)

        def _give_up(self, whole: Open) -> None:
            whole.missing.discard(self.lanes - 1)

    patch.setattr(client, "Gathering", Hasty)
