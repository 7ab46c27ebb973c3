"""A peer whose session has several lanes, by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs, tensors
from atoll_protos.codecs import Form
from atoll_protos.frames import Whole, transfer_frames
from atoll_protos.gathering import Gathering
from atoll_protos.parts import part_spans, span_bytes
from atoll_protos.run import RunFile
from wire.raw_peer import RUN_FILE, SECONDS_MAX, SEED, Peer, peer


@dataclass(slots=True, kw_only=True)
class LanedPeer:
    """One session with its lanes; `streams` are those that it has opened."""

    one: Peer
    lanes: int
    run_file: RunFile = RUN_FILE
    streams: dict[int, Any] = field(default_factory=dict)
    wholes: "asyncio.Queue[Whole]" = field(default_factory=asyncio.Queue)
    held: dict[int, pb.Version] = field(default_factory=dict)
    number: int = 0
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    gathering: Gathering | None = None

    def form(self, head: pb.Transfer) -> Form:
        """Of the slice of a head."""
        kind = str(head.WhichOneof("kind"))
        named = getattr(head, kind)
        fragment = named.version.slice if kind == "publish" else named.slice
        return self.run_file.layout(self.one.specs).slice(0, fragment).form

    async def join(self, *lanes: int) -> pb.ToLearner:
        """Join, and open these lanes; all of them where none is named."""
        answer = await self.one.join(lanes=self.lanes, run_hash=self.run_file.hash)
        if answer.HasField("welcome"):
            assert answer.welcome.lanes == self.lanes
            size = lambda head: self.form(head).byte_count(head.encoding)  # noqa: E731
            self.gathering = Gathering(self.lanes, size, self.form)
            for lane in lanes or range(self.lanes):
                self.open(lane)
            if answer.welcome.needs_model:
                model = self.run_file.layout(self.one.specs).to_model()
                await self.one.call.write(pb.ToShard(model=model))
        return answer

    def open(self, lane: int) -> Any:
        """Open one lane, and gather what comes on it."""
        stream = self.one.open_bulk(self.one.welcome.secret, str(lane))
        self.streams[lane] = stream
        self.tasks.append(asyncio.create_task(self._read(lane, stream)))
        return stream

    async def _read(self, lane: int, stream: Any) -> None:
        assert self.gathering is not None
        with suppress(grpc.aio.AioRpcError):
            while (frame := await stream.read()) is not grpc.aio.EOF:
                if (whole := self.gathering.feed(lane, frame)) is not None:
                    self.wholes.put_nowait(whole)

    def part(self, lane: int, head: pb.Transfer, data: bytes, number: int = 0) -> list[bytes]:
        """The frames of one part, of the transfer with this number; 0: the newest."""
        spans = part_spans(self.form(head), head.encoding, self.lanes)[lane]
        own = pb.Transfer()
        own.CopyFrom(head)
        own.byte_count = span_bytes(spans)
        return list(transfer_frames(number or self.number, own, data, spans))

    async def send(self, head: pb.Transfer, data: bytes, *lanes: int) -> None:
        """A new transfer, its parts on these lanes; all where none is named."""
        self.number += 1
        for lane in lanes or range(self.lanes):
            await self.write(lane, self.part(lane, head, data))

    async def write(self, lane: int, frames: list[bytes]) -> None:
        """The shard may end the stream before the last one."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for frame in frames:
                await self.streams[lane].write(frame)

    def seed(self, fragment: int) -> tuple[pb.Transfer, bytes]:
        """Version 0 of a slice: all elements the same."""
        count = self.run_file.layout(self.one.specs).slice(0, fragment).element_count
        data = bytes(tensors.byte_view(torch.full((count,), SEED)))
        return pb.Transfer(seed=pb.Seed(slice=fragment), encoding=pb.F32), data

    async def publish(self, fragment: int, number: int) -> Whole:
        """The version of this number; what comes before it is held as well."""
        while True:
            whole = await asyncio.wait_for(self.wholes.get(), SECONDS_MAX)
            version = whole.head.publish.version
            self.held[version.slice] = version.version
            if (version.slice, version.version.number) == (fragment, number):
                return whole

    async def version_0(self) -> None:
        """Of both slices, in either order."""
        while len(self.held) < self.run_file.sync.fragment_count:
            whole = await asyncio.wait_for(self.wholes.get(), SECONDS_MAX)
            version = whole.head.publish.version
            self.held[version.slice] = version.version

    async def report(self, t_m: int) -> None:
        """So many steps have been done on the versions held."""
        since = pb.Counters(steps=t_m, tokens=t_m)
        slices = [
            pb.SliceProgress(slice=n, held=held.number, since=since, digest=held.digest[:16])
            for n, held in sorted(self.held.items())
        ]
        report = pb.Report(t_m=t_m, step_seconds=1.0, slices=slices, training=True)
        await self.one.call.write(pb.ToShard(report=report))

    def offer(self, fragment: int, steps: int, seed: int) -> tuple[pb.Transfer, bytes]:
        """Random differences on the version held, in the encoding of the run file."""
        encoding = codecs.encoding_of(self.run_file.sync.wire_up)
        count = self.run_file.layout(self.one.specs).slice(0, fragment).element_count
        values = torch.randn(count, generator=torch.Generator().manual_seed(seed)) / 100
        held = self.held[fragment]
        offer = pb.Offer(
            slice=fragment,
            base=held.number,
            capture=steps,
            counters=pb.Counters(steps=steps, tokens=steps),
            base_digest=held.digest,
        )
        return pb.Transfer(offer=offer, encoding=encoding), bytes(tensors.encode(values, encoding))


@asynccontextmanager
async def laned_peer(
    endpoint: str, slot: str, lanes: int, run_file: RunFile = RUN_FILE
) -> AsyncIterator[LanedPeer]:
    """A peer whose channels are closed at the end."""
    async with peer(endpoint, slot) as one:
        laned = LanedPeer(one=one, lanes=lanes, run_file=run_file)
        yield laned
        for task in laned.tasks:
            task.cancel()
        await asyncio.gather(*laned.tasks, return_exceptions=True)
