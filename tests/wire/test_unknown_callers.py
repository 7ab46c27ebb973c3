"""Who shakes hands badly, or with a certificate opens sessions without a Join."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest

from atoll_protos.network.addresses import split
from atoll_protos.network.channels import control_options, open_channel
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub
from atoll_syncer.edges.service import UNJOINED_MAX
from wire.fixtures import ISSUER, RUN_FILE, SECONDS_MAX, ShardUnderTest, peer, tls_shard

HANDSHAKES = 50


@pytest.mark.fresh  # gRPC reads how much it logs when it is imported
def test_failed_handshakes_are_no_lines_of_the_log(tmp_path: Path) -> None:
    with tls_shard(tmp_path, ISSUER) as served:
        for _ in range(HANDSHAKES):
            with socket.create_connection(split(served.endpoint), SECONDS_MAX) as noise:
                noise.sendall(b"GET / HTTP/1.1\r\n\r\n" * 40)
                with suppress(ConnectionResetError):
                    while noise.recv(4096):
                        pass
        assert served.log.read_bytes().count(b"\n") < HANDSHAKES


async def test_sessions_without_a_join_are_bounded_for_each_certificate(
    served: ShardUnderTest,
) -> None:
    most = UNJOINED_MAX + len(RUN_FILE.slots)
    credentials, other = ISSUER.leaf(), ISSUER.leaf(region="elsewhere")
    async with open_channel(served.endpoint, control_options(), credentials) as channel:
        stub = SyncerStub(channel)
        codes = [asyncio.ensure_future(stub.Session().code()) for _ in range(most + 1)]
        done, open_ones = await asyncio.wait(
            codes, timeout=SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED
        )
        assert [code.result() for code in done] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        async with peer(served.endpoint, "here-9", credentials=other) as somebody:
            assert (await somebody.join()).HasField("end")  # refused for another reason
        assert len(open_ones) == most
