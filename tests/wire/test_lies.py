"""What a peer says that cannot be true, to a real shard: it serves the others (38, 39)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import tensors
from atoll_protos.frames import Kind, decode_frame, transfer_frames
from atoll_protos.names import PROTOCOL
from wire.raw_peer import RUN_FILE, Peer, ShardUnderTest, peer, shard

BIG = 2**64 - 1
STEP_SECONDS = 0.001
JOINS: tuple[dict[str, Any], ...] = (
    {"epochs_seen": [BIG]},
    {"incarnation": BIG},
    {"tick_seen": BIG},
)
REPORTS: tuple[dict[str, Any], ...] = (
    {"tokens": BIG},
    {"tick_seen": BIG},
    {"slices": [pb.SliceProgress(slice=7, held=1)]},
    {"slices": [pb.SliceProgress(slice=0, held=BIG, digest="x" * 16)]},
    {"trouble": "x" * (12 << 20)},
)


@dataclass
class Honest:
    """A learner that takes each version at once, and answers each Call."""

    served: ShardUnderTest
    peer: Peer
    t_m: int = 0
    transfers: int = 10
    versions: dict[int, tuple[pb.Version, int]] = field(default_factory=dict)  # and taken when
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def commits(self) -> None:
        """Train until the shard has committed once more."""
        while len(self.versions) < RUN_FILE.sync.fragment_count:
            self.heard.clear()
            await self.heard.wait()
        before = (await self.status()).commits
        while (await self.status()).commits == before:
            self.t_m += 1
            slices = [
                pb.SliceProgress(
                    slice=n, held=base.number, digest=base.digest[:16], since=self._since(n)
                )
                for n, (base, _) in self.versions.items()
            ]
            report = pb.Report(
                t_m=self.t_m, step_seconds=STEP_SECONDS, slices=slices, training=True
            )
            await self.peer.call.write(pb.ToShard(report=report))

    async def status(self) -> pb.StatusReply:
        return await asyncio.to_thread(lambda: self.served.status)

    def _since(self, fragment: int) -> pb.Counters:
        steps = self.t_m - self.versions[fragment][1]
        return pb.Counters(steps=steps, tokens=steps)

    async def listen(self) -> None:
        while (message := await self.peer.call.read()) is not grpc.aio.EOF:
            assert not message.HasField("end"), message
            if message.HasField("call"):
                await self._offer(message.call.slice)

    async def _offer(self, fragment: int) -> None:
        base, since = self.versions[fragment][0], self._since(fragment)
        offer = pb.Offer(
            slice=fragment,
            base=base.number,
            base_digest=base.digest,
            capture=since.steps,
            counters=since,
        )
        data = bytes(tensors.byte_view(self.peer.values(fragment, 0.01)))
        head = pb.Transfer(offer=offer, byte_count=len(data), encoding=pb.F32)
        self.transfers += 1
        await self.peer.send(list(transfer_frames(self.transfers, head, data)))

    async def receive(self) -> None:
        while (message := await self.peer.bulk.read()) is not grpc.aio.EOF:
            frame = decode_frame(message)
            if frame.kind == Kind.HEAD:
                named = pb.Transfer.FromString(bytes(frame.payload)).publish.version
                self.versions[named.slice] = named.version, self.t_m
                self.heard.set()


@asynccontextmanager
async def trains(served: ShardUnderTest, one: Peer) -> AsyncIterator[Honest]:
    """A learner with a session; an error in its background ends the test."""
    honest = Honest(served, one)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in (honest.listen(), honest.receive())]
        yield honest
        for task in tasks:
            task.cancel()


@contextmanager
def killed(served: ShardUnderTest) -> Iterator[None]:
    """At the end of the block the shard is killed with -9."""
    yield
    served.process.kill()
    served.process.wait()


async def refused(liar: Peer, **fields: Any) -> None:
    """A Join is answered by an end with a reason."""
    join = {
        "protocol": PROTOCOL,
        "run_hash": RUN_FILE.hash,
        "layout_digest": liar.layout.digest,
        "slot": liar.slot,
        "uid": "liar",
        "instance": "liar",
        **fields,
    }
    liar.call = liar.stub.Session()
    await liar.call.write(pb.ToShard(join=pb.Join(**join)))
    end = (await liar.next()).end
    assert (end.code, bool(end.reason)) == (pb.BAD_MESSAGE, True), end


async def ended(liar: Peer, **fields: Any) -> None:
    """A Report is answered by an end with a reason."""
    answer = await liar.join()
    assert answer.HasField("welcome"), answer
    await liar.call.write(pb.ToShard(report=pb.Report(training=True, t_m=1, **fields)))
    end = await liar.until("end")
    assert (end.code, bool(end.reason)) == (pb.BAD_MESSAGE, True), end


def test_whatever_one_peer_says_a_shard_goes_on_with_the_others_and_after_a_kill(
    tmp_path: Path,
) -> None:
    async def lies(served: ShardUnderTest) -> str:
        async with (
            peer(served.endpoint, "here-0") as one,
            peer(served.endpoint, "here-1") as liar,
        ):
            await one.ready_to_seed()
            await one.seed()
            async with trains(served, one) as honest:
                await honest.commits()
                for fields in JOINS:
                    await refused(liar, run=one.welcome.run, **fields)
                for fields in REPORTS:
                    await ended(liar, **fields)
                    await honest.commits()
            return one.welcome.run

    async def goes_on(served: ShardUnderTest, run: str) -> None:
        async with peer(served.endpoint, "here-0") as one:
            answer = await one.join(instance="next", run=run)
            assert answer.HasField("welcome"), answer
            async with trains(served, one) as honest:
                await honest.commits()

    with shard(tmp_path) as served, killed(served):
        run = asyncio.run(lies(served))
    with shard(tmp_path) as served:
        asyncio.run(goes_on(served, run))
