"""Seconds from the Joins of many learners at once to the last Welcome, for bench.store.

The learners are sessions by hand in one process; the shard is a process of its own.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

from atoll_protos.job.run_file import Region, RunFile
from local.stores.servers import Place
from wire.raw_peer import Peer, peer, shard

SECONDS_MAX = 60.0


def seconds(folder: Path, learners: int, place: Place | None) -> float:
    """With the shard's state in this bucket; None: in a folder."""
    folder.mkdir()
    region = Region(name="here", learners=learners)
    run_file = RunFile(job="admission", regions=(region,), shards=1, steps=1000)
    words = () if place is None else ("--store", place.url, "--store-endpoint", place.endpoint)
    with shard(folder, *words, run_file=run_file) as served:
        return asyncio.run(_joined(served.endpoint, run_file))


async def _joined(endpoint: str, run_file: RunFile) -> float:
    async with AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(peer(endpoint, f"here-{number}"))
            for number in range(run_file.regions[0].learners)
        ]
        await asyncio.gather(*(_is_open(endpoint) for _ in peers[:1]))
        began = time.monotonic()
        await asyncio.gather(*(_join(each, run_file.hash) for each in peers))
        return time.monotonic() - began


async def _is_open(endpoint: str) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        await asyncio.wait_for(channel.channel_ready(), SECONDS_MAX)


async def _join(one: Peer, run_hash: str) -> None:
    answer = await one.join(run_hash=run_hash, lanes=0)
    if not answer.HasField("welcome"):
        raise RuntimeError(f"{one.slot}: {answer}")
