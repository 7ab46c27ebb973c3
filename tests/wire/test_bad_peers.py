"""What a bad peer sends ends its own session with a reason, and nothing else (rule 25)."""

import asyncio
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.frames import Kind, encode_frame, transfer_frames
from atoll_protos.layout import TensorSpec
from wire.raw_peer import SECONDS_MAX, Peer, ShardUnderTest, peer, shard, shard_command, until

OTHER_MODEL = (
    TensorSpec(name="a", shape=(8, 8), dtype="float32", merge="rda"),
    TensorSpec(name="z", shape=(8, 8), dtype="float32", merge="rda"),
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ShardUnderTest]:
    """A shard that has just started."""
    with shard(tmp_path) as process:
        yield process


def corrupted(one: Peer) -> list[bytes]:
    head, chunk, *rest = one.frames(0)
    return [head, chunk[:-1] + bytes([chunk[-1] ^ 1]), *rest]


def truncated(one: Peer) -> list[bytes]:
    head, chunk, *rest = one.frames(0)
    return [head, chunk[:-4], *rest]


def too_long(one: Peer) -> list[bytes]:
    del one
    head = pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32, byte_count=1 << 40)
    return [encode_frame(Kind.HEAD, 1, 0, head.SerializeToString())]


def unknown_slice(one: Peer) -> list[bytes]:
    del one
    head = pb.Transfer(seed=pb.Seed(slice=7), encoding=pb.F32, byte_count=4)
    return list(transfer_frames(1, head, b"\0\0\0\0"))


def not_finite(one: Peer) -> list[bytes]:
    return one.frames(0, value=math.nan)


def infinite(one: Peer) -> list[bytes]:
    return one.frames(0, value=math.inf)


def no_frame(one: Peer) -> list[bytes]:
    del one
    return [b"GET / HTTP/1.1\r\n" * 4]


@pytest.mark.parametrize(
    "bad", [corrupted, truncated, too_long, unknown_slice, not_finite, infinite, no_frame]
)
def test_a_bad_transfer_ends_its_session_and_the_next_learner_seeds(
    bad: Callable[[Peer], list[bytes]], served: ShardUnderTest
) -> None:
    async def scenario() -> None:
        async with (
            peer(served.endpoint, "here-0") as first,
            peer(served.endpoint, "here-1") as other,
        ):
            await first.ready_to_seed()
            assert (await other.join()).HasField("welcome")
            await first.send(bad(first))
            end = await first.until("end")
            assert end.code == pb.BAD_TRANSFER
            assert end.reason
            assert end.remedy
            await other.until("send_seed")
            await other.seed()
            await until(lambda: served.status.state == pb.SHARD_SERVING)

    asyncio.run(scenario())


def test_an_oversized_message_ends_its_session_and_nothing_else(served: ShardUnderTest) -> None:
    async def scenario() -> None:
        async with (
            peer(served.endpoint, "here-0") as first,
            peer(served.endpoint, "here-1") as other,
        ):
            await first.ready_to_seed()
            assert (await other.join()).HasField("welcome")
            await first.send([bytes(64 << 20)])
            first.call.cancel()
            await other.until("send_seed")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"run_hash": "other"}, pb.OTHER_RUN_HASH, "spec.sync"),
        ({"slot": "here"}, pb.UNKNOWN_SLOT, "REGION-ORDINAL"),
        ({"protocol": 99}, pb.OTHER_PROTOCOL, "version"),
    ],
)
def test_a_join_that_does_not_fit_is_told_what_to_do(
    changes: dict[str, Any], code: pb.Code, names: str, served: ShardUnderTest
) -> None:
    async def scenario() -> None:
        async with (
            peer(served.endpoint, "here-0") as first,
            peer(served.endpoint, "here-1") as other,
        ):
            assert (await other.join()).HasField("welcome")
            end = (await first.join(**changes)).end
            assert end.code == code
            assert not end.retry
            assert names in f"{end.reason} {end.remedy}"
            assert [slot.state for slot in served.status.slots] == [pb.SLOT_JOINING]

    asyncio.run(scenario())


def test_a_learner_with_another_model_is_refused_and_the_run_goes_on(
    served: ShardUnderTest,
) -> None:
    async def scenario() -> None:
        async with (
            peer(served.endpoint, "here-0") as first,
            peer(served.endpoint, "here-1", OTHER_MODEL) as other,
        ):
            await first.ready_to_seed()
            await first.seed()
            await until(lambda: served.status.state == pb.SHARD_SERVING)
            end = (await other.join()).end
            assert end.code == pb.OTHER_LAYOUT
            assert "same model" in end.remedy
            assert end.model == first.layout.to_model()
            assert "which here-0 brought" in end.reason
        assert served.status.state == pb.SHARD_SERVING

    asyncio.run(scenario())


def test_a_message_out_of_place_ends_its_session(served: ShardUnderTest) -> None:
    async def scenario() -> None:
        async with peer(served.endpoint, "here-0") as first:
            assert (await first.join()).HasField("welcome")
            await first.call.write(pb.ToShard(join=pb.Join()))
            end = await first.until("end")
            assert end.code == pb.BAD_MESSAGE

    asyncio.run(scenario())


def test_a_port_in_use_is_one_line_that_names_it(served: ShardUnderTest, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    command = shard_command(other, served.endpoint)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 64
    last = done.stderr.strip().splitlines()[-1]
    assert served.endpoint in last
    assert ";" in last  # a remedy follows


def test_a_model_for_which_there_is_no_memory_ends_its_session_and_nothing_else(
    served: ShardUnderTest,
) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_stranger_and_a_second_bulk_stream_are_refused_and_get_nothing(
    served: ShardUnderTest,
) -> None:
    async def refused(one: Peer, secret: str) -> grpc.StatusCode:
        bulk = one.open_bulk(secret)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await bulk.read()
        return error.value.code()

    async def scenario() -> None:
        async with peer(served.endpoint, "here-0") as first:
            await first.ready_to_seed()
            assert len(first.welcome.secret) == 32
            assert await refused(first, "0" * 32) == grpc.StatusCode.PERMISSION_DENIED
            assert await refused(first, "") == grpc.StatusCode.PERMISSION_DENIED
            await first.send(first.frames(0))
            code = await refused(first, first.welcome.secret)
            assert code == grpc.StatusCode.ALREADY_EXISTS
            await first.send(first.frames(1))
            await until(lambda: served.status.state == pb.SHARD_SERVING)

    asyncio.run(scenario())
    assert "lane 0 of session 1 is open already" in served.log.read_text()
