"""What a bad peer sends ends its own session with a reason, and nothing else (rule 25)."""

import math
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec
from wire.fixtures import (
    SECONDS_MAX,
    Peer,
    ShardUnderTest,
    is_serving,
    peer,
    shard,
    shard_command,
    until,
)

LOG_BYTES_MAX = 64 << 10


@pytest.fixture(scope="module")
def unseeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardUnderTest]:
    """A shard that is never seeded: whoever joins first is asked."""
    with shard(tmp_path_factory.mktemp("shard")) as process:
        yield process


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ShardUnderTest]:
    """A shard that has just started."""
    with shard(tmp_path) as process:
        yield process


@asynccontextmanager
async def two(served: ShardUnderTest) -> AsyncIterator[tuple[Peer, Peer]]:
    """The one that will be bad, and another one."""
    async with (
        peer(served.endpoint, "here-0") as first,
        peer(served.endpoint, "here-1") as second,
    ):
        yield first, second


def corrupted(one: Peer) -> list[bytes]:
    head, chunk, *rest = one.frames(0)
    return [head, chunk[:-1] + bytes([chunk[-1] ^ 1]), *rest]


BAD: dict[str, Callable[[Peer], list[bytes]]] = {
    "corrupted": corrupted,
    "not finite": lambda one: one.frames(0, value=math.nan),
    "no frame": lambda one: [b"GET / HTTP/1.1\r\n" * 4],
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_bad_transfer_ends_its_session_and_the_next_learner_is_asked(
    bad: Callable[[Peer], list[bytes]], unseeded: ShardUnderTest
) -> None:
    async with two(unseeded) as (first, other):
        await first.ready_to_seed()
        assert (await other.join()).HasField("welcome")
        await first.send(bad(first))
        end = await first.until("end")
        assert end.code == pb.BAD_TRANSFER
        assert end.reason
        assert end.remedy
        await other.until("send_seed")


async def test_an_oversized_message_ends_its_session_and_nothing_else(
    unseeded: ShardUnderTest,
) -> None:
    async with two(unseeded) as (first, other):
        await first.ready_to_seed()
        assert (await other.join()).HasField("welcome")
        await first.send([bytes(64 << 20)])
        first.call.cancel()
        await other.until("send_seed")


def test_a_port_in_use_is_one_line_that_names_it(unseeded: ShardUnderTest, tmp_path: Path) -> None:
    command = shard_command(tmp_path, unseeded.endpoint)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 64
    last = done.stderr.strip().splitlines()[-1]
    assert unseeded.endpoint in last
    assert ";" in last  # a remedy follows


async def test_a_model_for_which_there_is_no_memory_ends_its_session_and_nothing_else(
    served: ShardUnderTest,
) -> None:
    huge = tuple(
        TensorSpec(name=name, shape=(1 << 40,), dtype="float32", merge="rda") for name in "ab"
    )
    async with peer(served.endpoint, "here-0", huge) as wrong:
        assert (await wrong.join()).welcome.needs_model
        await wrong.call.write(pb.ToShard(model=wrong.layout.to_model()))
        assert (await wrong.until("end")).code == pb.OTHER_LAYOUT
    async with peer(served.endpoint, "here-1") as right:
        await right.ready_to_seed()
        await right.seed()
        await until(lambda: served.status.state == pb.SHARD_SERVING)


async def test_a_join_of_many_megabytes_is_refused_and_the_log_stays_short(
    unseeded: ShardUnderTest,
) -> None:
    before = unseeded.log.stat().st_size
    async with peer(unseeded.endpoint, "here-0") as wrong:
        answer = await wrong.join(protocol=0, instance="i" * (15 << 20))
        assert answer.end.code == pb.OTHER_PROTOCOL
    assert unseeded.log.stat().st_size - before < LOG_BYTES_MAX


def test_the_health_port_takes_no_more_than_the_name_of_a_service(
    unseeded: ShardUnderTest,
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        is_serving(unseeded.health_port, "s" * (8 << 10))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert is_serving(unseeded.health_port)
