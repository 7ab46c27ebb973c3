"""Endpoints of shards as text, and as gRPC dials them."""

import asyncio
import socket

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from atoll_protos.errors import SpecError
from atoll_protos.network import channels, diagnosis
from atoll_protos.network.addresses import endpoints_of, target
from unit.contract.test_diagnosis import PLAIN

FAILED = grpc.ChannelConnectivity.TRANSIENT_FAILURE
GRPCS_OWN_SECONDS = 20.0  # for an attempt at one address, unless it is told another time


def test_endpoints_stand_by_shard_with_the_addresses_of_its_processes() -> None:
    assert endpoints_of(" 10.0.0.1:1|10.0.0.2:2, shard-1.team.svc:7700,") == (
        "10.0.0.1:1|10.0.0.2:2",
        "shard-1.team.svc:7700",
    )
    assert endpoints_of("") == ()


def test_grpc_gets_all_addresses_of_a_shard_as_one_target() -> None:
    assert target("10.0.0.1:1|10.0.0.2:2") == "ipv4:10.0.0.1:1,10.0.0.2:2"
    assert target("[fd00::1]:1|[fd00::2]:2") == "ipv6:[fd00::1]:1,[fd00::2]:2"
    assert target("shard-1.team.svc:7700") == "shard-1.team.svc:7700"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one:1|two:2", "ATOLL_ENDPOINTS: one:1|two:2: .*; give IP addresses with ports, or one"),
        ("10.0.0.1:1|10.0.0.2", "10.0.0.2' is not host:port"),
        ("10.0.0.1:1|", "'' is not host:port"),
        ("a:1,10.0.0.1:1|[fd00::1]:1", "of IPv4 and of IPv6; give a shard's addresses in one"),
    ],
)
def test_addresses_that_grpc_cannot_dial_as_one_are_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("|", r"\|")):
        endpoints_of(text)


@pytest.mark.parametrize("free_first", [True, False])
def test_the_process_of_a_shard_that_listens_is_found(free_first: bool) -> None:
    """A free port refuses, and the same channel and the same look find the other one."""

    async def answered() -> int:
        server, health = grpc.aio.server(), health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            both = [f"127.0.0.1:{free.getsockname()[1]}", f"127.0.0.1:{port}"]
            endpoint = "|".join(both if free_first else reversed(both))
            assert await diagnosis.look(endpoint, None) == PLAIN
            async with channels.open_channel(endpoint, channels.control_options()) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                reply = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        await server.stop(0)
        return int(reply.status)

    assert asyncio.run(answered()) == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("standing_first", [True, False])
def test_a_process_that_begins_to_listen_is_found_beside_one_that_stands(
    standing_first: bool,
) -> None:
    """As beside a node that is gone: connections to it neither succeed nor fail by themselves."""

    async def answered() -> int:
        with socket.socket() as standing, socket.socket() as free:
            standing.bind(("127.0.0.1", 0))
            standing.listen()
            free.bind(("127.0.0.1", 0))
            later = f"127.0.0.1:{free.getsockname()[1]}"
            both = [f"127.0.0.1:{standing.getsockname()[1]}", later]
            endpoint = "|".join(both if standing_first else reversed(both))
            options = channels.control_options(0.1)
            async with channels.open_channel(endpoint, options) as channel:
                async with asyncio.timeout(GRPCS_OWN_SECONDS / 2):
                    while (state := channel.get_state(try_to_connect=True)) is not FAILED:
                        await channel.wait_for_state_change(state)
                free.close()
                server, health = grpc.aio.server(), health_aio.HealthServicer()
                health_pb2_grpc.add_HealthServicer_to_server(health, server)
                server.add_insecure_port(later)
                await server.start()
                stub = health_pb2_grpc.HealthStub(channel)
                reply = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        await server.stop(0)
        return int(reply.status)

    assert asyncio.run(answered()) == health_pb2.HealthCheckResponse.SERVING
