"""Bulk with mutual TLS over Bulk in plain text: whole transfers into another process, in one run.

In tests/: python -m bench.tls [--json FILE]
"""

import argparse
import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network import channels
from atoll_protos.network.channels import BULK_METHOD, Folder, ServerFiles
from atoll_protos.network.credentials import Credentials, Role
from atoll_protos.transfer.frames import Assembler, transfer_frames
from bench.results import Figure, option, publish
from bench.table import interleaved
from wire.fixtures import Issuer, put


async def take(request_iterator: Any, context: Any) -> None:
    """Check transfers at a shard's end of the stream, and answer each."""
    assembler = Assembler(lambda head: head.byte_count)
    while (frame := await context.read()) is not grpc.aio.EOF:
        if assembler.feed(frame) is not None:
            await context.write(b"whole")


async def serve(folder: str) -> None:
    """One server with a port of each kind; prints both, and serves until it is ended."""
    server = grpc.aio.server(options=channels.server_options())
    name, _, method = BULK_METHOD.strip("/").partition("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(take)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {method: handler}),)
    )
    files = ServerFiles(Folder(path=folder), Credentials.read(folder))
    ports = (
        server.add_insecure_port("127.0.0.1:0"),
        server.add_secure_port("127.0.0.1:0", files.credentials()),
    )
    await server.start()
    sys.stdout.write(f"{ports[0]} {ports[1]}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


class Stream:
    """One open Bulk stream of a learner."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: str, mine: Credentials | None):
        self.loop, self.port, self.credentials = loop, port, mine
        self.call: Any = None

    async def open(self) -> None:
        """Connect."""
        endpoint, options = f"127.0.0.1:{self.port}", channels.bulk_options()
        self.channel = channels.open_channel(endpoint, options, self.credentials)
        method: Any = self.channel.stream_stream(BULK_METHOD)
        self.call = method()

    def send(self, payload: bytes) -> None:
        """One transfer, until the other end has it whole."""
        self.loop.run_until_complete(self._send(payload))

    async def _send(self, payload: bytes) -> None:
        head = pb.Transfer(seed=pb.Seed(), encoding=pb.BF16, byte_count=len(payload))
        for frame in transfer_frames(1, head, payload):
            await self.call.write(frame)
        await self.call.read()


def main() -> None:
    """Medians of interleaved transfers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256, help="of one transfer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    option(parser)
    flags = parser.parse_args()
    if flags.serve:
        asyncio.run(serve(flags.serve))
        return
    issuer, payload = Issuer(), os.urandom(1 << 20) * flags.mebibytes
    loop = asyncio.new_event_loop()
    with TemporaryDirectory() as folder:
        put(Path(folder), issuer.leaf(Role.SHARD))
        command = [sys.executable, "-m", "bench.tls", "--serve", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            plain, secure = server.stdout.readline().split()
            streams = {
                "plain text": Stream(loop, plain, None),
                "mutual TLS": Stream(loop, secure, issuer.leaf()),
            }
            for stream in streams.values():
                loop.run_until_complete(stream.open())
            cases = {name: partial(each.send, payload) for name, each in streams.items()}
            seconds = interleaved(cases, flags.rounds)
            server.kill()
    speed = {name: flags.mebibytes / each for name, each in seconds.items()}
    secure_speed, plain_speed = speed["mutual TLS"], speed["plain text"]
    figures = [
        Figure(what="throughput with TLS, of that without", values=[secure_speed / plain_speed]),
        Figure(what="with TLS, without", values=[secure_speed, plain_speed], unit="MiB/s"),
    ]
    publish(flags, figures, about=f"Transfers of {flags.mebibytes} MiB.")


if __name__ == "__main__":
    main()
