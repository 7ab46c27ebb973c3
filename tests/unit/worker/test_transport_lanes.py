"""What a learner sends over several lanes: every lane its stripe of every transfer."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.channels import LANE_METADATA
from atoll_protos.transfer.frames import Whole
from atoll_protos.transfer.gathering import Gathering
from atoll_worker.transport.control_stream import Bulk, Outgoing, Payload

SIZE = 1003


class Call:
    """A stream of gRPC on which nothing comes; it takes what is written, one at a time."""

    def __init__(self, written: list[bytes]) -> None:
        self.written = written

    async def read(self) -> Any:
        await asyncio.Event().wait()

    async def write(self, frame: bytes) -> None:
        await asyncio.sleep(0)
        self.written.append(frame)


class Channel:
    """The connections of one session, of which each has one call."""

    def __init__(self) -> None:
        self.lanes: list[list[bytes]] = []
        self.metadata: list[dict[str, str]] = []

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def stream_stream(self, _: str) -> Callable[..., Call]:
        def call(metadata: Any) -> Call:
            self.metadata.append(dict(metadata))
            self.lanes.append([])
            return Call(self.lanes[-1])

        return call


def offer(number: int, data_state: bytes | None = None) -> Outgoing:
    named = pb.Offer(slice=number, data_state=data_state)
    data = bytes((number + at) % 256 for at in range(SIZE))
    return Outgoing(pb.Transfer(offer=named, encoding=pb.INT8, byte_count=SIZE), data)


def sent(lanes: int, *outgoing: Outgoing | None) -> tuple[Channel, list[Whole]]:
    """What a receiver puts together of what a session sends on its lanes."""
    queue: asyncio.Queue[Payload] = asyncio.Queue()
    channel, gathering, wholes = Channel(), Gathering(lanes, lambda _: SIZE), list[Whole]()

    def payload(each: Outgoing | None) -> Payload:
        async def made() -> Outgoing | None:
            return each

        return made

    async def read(lane: int) -> None:
        while len(wholes) < len([*filter(None, outgoing)]):
            await gathering.turn(lane)
            while channel.lanes[lane] and (not gathering.head or gathering.owes(lane)):
                if (whole := gathering.feed(lane, channel.lanes[lane].pop(0))) is not None:
                    wholes.append(whole)
            await asyncio.sleep(0)

    async def scenario() -> None:
        for each in outgoing:
            queue.put_nowait(payload(each))
        bulk = Bulk(
            endpoint="shard:1",
            open_channel=lambda *_: cast(Any, channel),
            session=7,
            secret="s",
            payloads=queue,
            admit=lambda _: None,
            whole=lambda _: asyncio.sleep(0),
            lanes=lanes,
        )
        running = asyncio.create_task(bulk.run())
        while len(channel.lanes) < lanes:  # noqa: ASYNC110 - they open in turns of the loop
            await asyncio.sleep(0)
        await asyncio.gather(*(read(lane) for lane in range(lanes)))
        running.cancel()

    asyncio.run(scenario())
    return channel, wholes


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_what_the_lanes_send_is_put_together_again(lanes: int) -> None:
    outgoing = (offer(1), None, offer(2))
    channel, wholes = sent(lanes, *outgoing)
    assert [bytes(whole.payload) for whole in wholes] == [each.data for each in outgoing if each]
    assert [whole.head for whole in wholes] == [each.head for each in outgoing if each]
    named = [each.get(LANE_METADATA) for each in channel.metadata]
    assert named == ([None] if lanes == 1 else [str(lane) for lane in range(lanes)])


def test_all_lanes_say_the_same_of_the_data_state_of_an_offer_rule_28() -> None:
    _, wholes = sent(3, offer(1, b"state"), offer(2, b"state"), offer(3, b"other"))
    said = [(w.head.offer.data_state, w.head.offer.same_data_state) for w in wholes]
    assert said == [(b"state", False), (b"", True), (b"other", False)]
