"""Frames over a real bulk stream: generic handler, no serializer, the shared channel options."""

import asyncio
import random
from collections.abc import AsyncIterator

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import channels
from atoll_protos.frames import CHUNK_BYTES, Assembler, FrameError, transfer_frames

SIZE = 3 * CHUNK_BYTES + 12345


def head(byte_count: int) -> pb.Transfer:
    return pb.Transfer(seed=pb.Seed(slice=1), encoding=pb.BF16, byte_count=byte_count)


async def echo(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    """Send every whole transfer back as another one."""
    assembler = Assembler(lambda head: head.byte_count if head.byte_count <= SIZE else None)
    try:
        async for message in requests:
            if whole := assembler.feed(message):
                for frame in transfer_frames(9, whole.head, whole.payload):
                    yield frame
    except FrameError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def exchange(payload: bytes) -> bytes:
    """What comes back for `payload`; raises AioRpcError when the server refuses it."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(echo)
    service, method = channels.BULK_METHOD.strip("/").split("/")
    server = grpc.aio.server(options=channels.server_options())
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        options = channels.bulk_options()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            frames = transfer_frames(1, head(len(payload)), payload)
            bulk: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
            bulk = channel.stream_stream(channels.BULK_METHOD)
            assembler = Assembler(lambda head: head.byte_count)
            async for message in bulk(frames, timeout=30):
                if whole := assembler.feed(message):
                    return bytes(whole.payload)
    finally:
        await server.stop(None)
    raise AssertionError("the stream ended without a transfer")


def test_a_transfer_of_several_chunks_crosses_a_bulk_stream_both_ways() -> None:
    payload = random.Random(1).randbytes(SIZE)
    assert asyncio.run(exchange(payload)) == payload


def test_a_refused_transfer_ends_the_stream() -> None:
    """Its reason is lost when the sender is writing: it travels on the Session."""
    with pytest.raises(grpc.aio.AioRpcError):
        asyncio.run(exchange(bytes(SIZE + 1)))
