"""Any bytes on the streams of a real shard: it goes on, in as little memory, and others commit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import PROTOCOL
from atoll_protos.network import channels
from atoll_protos.transfer.frames import transfer_frames
from unit.hostile.mutated import mutated_bytes
from wire.fixtures import RUN_FILE, SPECS, ShardUnderTest, first_commit, peer, shard

SECONDS_MAX: Final = 60.0
SESSION: Final = "/atoll_protos.v1.Syncer/Session"
SPARE_BYTES: Final = 64 << 20  # by which a shard may grow, whatever it is sent
LAYOUT: Final = RUN_FILE.layout(SPECS)
JOIN: Final = pb.ToShard(
    join=pb.Join(
        protocol=PROTOCOL,
        run_hash=RUN_FILE.hash,
        layout_digest=LAYOUT.digest,
        slot="here-2",
        uid="u",
        instance="i",
    )
)
REPORT: Final = pb.Report(t_m=3, tokens=9, slices=[pb.SliceProgress(held=1)], training=True)
SAID: Final = [
    each.SerializeToString()
    for each in (pb.ToShard(model=LAYOUT.to_model()), pb.ToShard(report=REPORT), JOIN)
]
DATA: Final = bytes(4 * LAYOUT.slice(0, 0).element_count)
FRAMES: Final = [
    *transfer_frames(1, pb.Transfer(seed=pb.Seed(), byte_count=len(DATA), encoding=pb.F32), DATA),
    *transfer_frames(2, pb.Transfer(offer=pb.Offer(), byte_count=8, encoding=pb.BF16), bytes(8)),
]
ATTACKS: Final = st.tuples(
    st.lists(st.sampled_from(SAID) | mutated_bytes(SAID), max_size=3),
    st.lists(st.sampled_from(FRAMES) | mutated_bytes(FRAMES), max_size=4),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardUnderTest]:
    with shard(tmp_path_factory.mktemp("shard")) as process:
        yield process


def resident_bytes(served: ShardUnderTest) -> int:
    text = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) << 10


async def attack(endpoint: str, said: list[bytes], frames: list[bytes]) -> None:
    """One session, which begins with a Join; it may end at any time."""
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
        async with grpc.aio.insecure_channel(endpoint) as opened:
            channel: Any = opened  # its messages are bytes
            session = channel.stream_stream(SESSION)(timeout=SECONDS_MAX)
            await session.write(JOIN.SerializeToString())
            answer = pb.ToLearner.FromString(await session.read())
            pairs = (
                (channels.SESSION_METADATA, str(answer.welcome.session)),
                (channels.SECRET_METADATA, answer.welcome.secret),
            )
            bulk = channel.stream_stream(channels.BULK_METHOD)(
                sent(frames), metadata=pairs, timeout=SECONDS_MAX
            )
            for each in said:
                await session.write(each)
            await bulk.read()


async def sent(frames: list[bytes]) -> AsyncIterator[bytes]:
    for each in frames:
        yield each


def test_no_bytes_end_a_shard_or_keep_others_from_a_commit_rules_25_and_38(
    served: ShardUnderTest,
) -> None:
    before = resident_bytes(served)

    async def honest() -> None:
        async with peer(served.endpoint, "here-0") as learner:
            await first_commit(served, learner)

    @settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=25,
        suppress_health_check=list(HealthCheck),
    )
    @given(ATTACKS)
    def attacked(bytes_: tuple[list[bytes], list[bytes]]) -> None:
        runner.run(attack(served.endpoint, *bytes_))
        assert served.process.poll() is None, served.log.read_text()

    with asyncio.Runner() as runner:
        attacked()
        runner.run(honest())
    assert resident_bytes(served) - before < SPARE_BYTES
