"""An offer that is cut anywhere, or not finite at its end, leaves no trace (rule 12)."""

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import transfer_frames
from wire.raw_peer import RUN_FILE, STEPS_UNTIL_DUE, Peer, ShardUnderTest, first_commit, peer, shard
from wire.raw_peer import until as holds

CUTS: Final = 20
STEPS: Final = STEPS_UNTIL_DUE - 1
VALUE: Final = 0.01  # of the honest offer
OPENING_BYTES: Final = 800
READ_BYTES: Final = 1 << 16


def committed(folder: Path) -> list[tuple[Any, ...]]:
    """Slice, number, digest and slots of each version in the shard's log."""
    entries = sorted((folder / "store" / "log").glob("*.json"))
    records = [each for path in entries for each in json.loads(path.read_text())["records"]]
    return [
        (each["slice"], each["number"], each["digest"], [x["slot"] for x in each["participants"]])
        for each in records
        if each["kind"] == "Committed"
    ]


@asynccontextmanager
async def cut_after(endpoint: str, byte_count: int) -> AsyncIterator[str]:
    """The address of a proxy that breaks the second connection, Bulk, after so many bytes.

    Of these the opening of the stream takes some hundred.
    """
    host, _, port = endpoint.rpartition(":")
    tasks, opened = set[Any](), 0

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        left = byte_count if opened == 2 else 1 << 40
        shard_reader, shard_writer = await asyncio.open_connection(host, int(port))
        back = asyncio.create_task(passed(shard_reader, writer, 1 << 40))
        tasks.update({asyncio.current_task(), back})
        try:
            await passed(reader, shard_writer, left)
        finally:
            for each in (shard_writer, writer):
                each.transport.abort()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def passed(source: asyncio.StreamReader, target: asyncio.StreamWriter, left: int) -> None:
    with suppress(OSError):
        while left and (data := await source.read(min(left, READ_BYTES))):
            left -= len(data)
            target.write(data)
            await target.drain()


def frames(learner: Peer, call: pb.Call, last: float) -> list[bytes]:
    """An offer with this last element."""
    values = learner.values(call.slice, 5.0)
    values[-1] = last
    data = values.tobytes()
    offer = pb.Offer(
        slice=call.slice,
        capture=STEPS,
        counters=pb.Counters(steps=STEPS, tokens=STEPS),
        base_digest=learner.digest(call.slice),
    )
    head = pb.Transfer(offer=offer, byte_count=len(data), encoding=pb.F32)
    return list(transfer_frames(RUN_FILE.sync.fragment_count + 1, head, data))


async def called(learner: Peer) -> pb.Call:
    """It trains until the round that is due asks for its offer."""
    for t_m in range(STEPS + 1):
        await learner.report(t_m)
    call: pb.Call = await learner.until("call")
    await learner.report(STEPS, waiting=True)
    return call


async def half_offer(served: ShardUnderTest, byte_count: int) -> None:
    async with (
        cut_after(served.endpoint, byte_count) as endpoint,
        peer(endpoint, "here-1") as learner,
    ):
        await learner.join(instance=f"cut after {byte_count}")
        await learner.send(frames(learner, await called(learner), 5.0))
        while await learner.call.read():  # until the shard ends the session
            pass


async def not_finite(served: ShardUnderTest) -> None:
    async with peer(served.endpoint, "here-1") as learner:
        await learner.join(instance="not finite")
        await learner.send(frames(learner, await called(learner), math.nan))
        await holds(lambda: any("not finite" in each.reason for each in served.status.slots))


async def test_offers_that_are_cut_anywhere_are_as_if_they_had_never_been(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    with shard(tmp_path / "with") as served:
        async with peer(served.endpoint, "here-0") as honest:
            await honest.ready_to_seed()
            await honest.seed()
            await holds(lambda: served.status.state == pb.SHARD_SERVING)
            call = await called(honest)
            bytes_ = len(honest.values(call.slice).tobytes())
            for byte_count in random.Random(3).sample(range(OPENING_BYTES, bytes_), CUTS):
                await half_offer(served, byte_count)
            await not_finite(served)
            await honest.offer(call, STEPS, VALUE)
            await holds(lambda: served.status.commits == 1)
    with shard(tmp_path / "without") as served:
        async with peer(served.endpoint, "here-0") as honest:
            await first_commit(served, honest)
    (version,) = committed(tmp_path / "with")
    assert version[-1] == ["here-0"]
    assert committed(tmp_path / "without") == [version]
