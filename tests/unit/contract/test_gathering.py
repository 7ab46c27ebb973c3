"""Transfers over several lanes: whole only with all stripes, one after another, in one buffer."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import LANES_MAX
from atoll_protos.transfer.frames import (
    FrameError,
    Whole,
    stripe,
    transfer_frames,
)
from atoll_protos.transfer.gathering import Gathering

BYTES = 1500


def head(capture: int) -> pb.Transfer:
    return pb.Transfer(offer=pb.Offer(capture=capture), byte_count=BYTES)


def payload(number: int) -> bytes:
    return bytes((number * 31 + at) % 251 for at in range(BYTES))


def frames_of(number: int, lanes: int, lane: int) -> list[bytes]:
    """What a lane carries of a transfer."""
    return list(transfer_frames(number, head(number), payload(number), lanes, lane))


class Receiver:
    """A gathering, and what it has admitted and completed."""

    def __init__(self, lanes: int, byte_count: int | None = BYTES) -> None:
        self.admitted: list[int] = []
        self.wholes: list[Whole] = []
        self.byte_count = byte_count
        self.gathering = Gathering(lanes, self.admit)

    def admit(self, head: pb.Transfer) -> int | None:
        self.admitted.append(head.offer.capture)
        return self.byte_count

    def feed(self, lane: int, *frames: bytes) -> None:
        for frame in frames:
            if (whole := self.gathering.feed(lane, frame)) is not None:
                self.wholes.append(whole)


@given(st.integers(0, 10_000), st.integers(1, LANES_MAX))
def test_stripes_tile_a_transfer_and_differ_by_a_byte_rule_32(size: int, lanes: int) -> None:
    stripes = [stripe(size, lanes, lane) for lane in range(lanes)]
    assert (stripes[0].start, stripes[-1].stop) == (0, size)
    assert all(one.stop == other.start for one, other in pairwise(stripes))
    assert max(map(len, stripes)) - min(map(len, stripes)) <= 1


@given(st.data(), st.integers(1, 5), st.integers(1, 4))
def test_lanes_at_their_own_pace_complete_one_transfer_after_another(
    data: st.DataObject, lanes: int, transfers: int
) -> None:
    receiver, numbers = Receiver(lanes), range(1, transfers + 1)

    async def read(lane: int) -> None:
        for frame in (each for number in numbers for each in frames_of(number, lanes, lane)):
            for _ in range(turns[lane]):
                await asyncio.sleep(0)
            receiver.feed(lane, frame)
            await receiver.gathering.turn(lane)

    async def scenario() -> None:
        await asyncio.gather(*(read(lane) for lane in range(lanes)))

    turns = [data.draw(st.integers(0, 5)) for _ in range(lanes)]
    asyncio.run(scenario())
    assert [bytes(whole.payload) for whole in receiver.wholes] == [payload(n) for n in numbers]
    assert [whole.head for whole in receiver.wholes] == [head(n) for n in numbers]
    assert receiver.admitted == [*numbers]  # one credit each
    assert receiver.gathering.transfers == transfers


def test_all_stripes_but_one_are_nothing_rule_33() -> None:
    receiver = Receiver(3)
    for lane in (2, 0):
        receiver.feed(lane, *frames_of(1, 3, lane))
    assert (receiver.admitted, receiver.wholes) == ([1], [])
    assert [receiver.gathering.owes(lane) for lane in range(3)] == [False, True, False]
    receiver.feed(1, *frames_of(1, 3, 1))
    assert [whole.payload for whole in receiver.wholes] == [payload(1)]
    assert not any(receiver.gathering.owes(lane) for lane in range(3))


@pytest.mark.parametrize(
    ("lane", "frames", "reason"),
    [
        (1, frames_of(2, 2, 1), "another head on other lanes"),
        (0, frames_of(1, 2, 0), "begins before the one before is whole"),
        (1, frames_of(1, 1, 0), "more than the 750 bytes"),
        (1, frames_of(1, 3, 1), "500 of 750 bytes at the trailer"),
    ],
    ids=["another transfer", "out of turn", "the whole", "of other lanes"],
)
def test_what_is_not_the_lanes_stripe_of_the_transfer_ends_the_session(
    lane: int, frames: list[bytes], reason: str
) -> None:
    receiver = Receiver(2)
    receiver.feed(0, *frames_of(1, 2, 0))
    with pytest.raises(FrameError, match=reason):
        receiver.feed(lane, *frames)
    assert receiver.wholes == []


@pytest.mark.parametrize(
    ("byte_count", "reason"), [(None, "not asked for"), (BYTES + 1, "the layout says")]
)
def test_what_is_refused_or_has_the_wrong_size_takes_no_memory_rule_25(
    byte_count: int | None, reason: str
) -> None:
    receiver = Receiver(2, byte_count)
    with pytest.raises(FrameError, match=reason):
        receiver.feed(0, *frames_of(1, 2, 0))
    assert receiver.gathering.head is None
