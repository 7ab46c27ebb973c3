"""The operator answers probes and scrapes at whichever address its pod has."""

import asyncio

import aiohttp
from prometheus_client import CollectorRegistry

from atoll_operator.kube import serve
from atoll_operator.kube.serve import Signs
from atoll_operator.local.startable import free_ports


def leader() -> Signs:
    return Signs(now=1.0, leads=True, holder="a", tried_at=1.0, answering_since=1.0)


async def test_requests_that_never_end_keep_no_probe_from_an_answer_and_are_ended() -> None:
    (port,) = free_ports(1)
    runner = await serve.serve_http(port, leader, CollectorRegistry())
    hanging = []
    try:
        for _ in range(3 * serve.CONNECTIONS_MAX):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez")
            hanging.append((reader, writer))
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/readyz") as reply,
        ):
            assert reply.status == 200
        for reader, _ in hanging[: 2 * serve.CONNECTIONS_MAX]:
            assert await asyncio.wait_for(reader.read(), 60.0) == b""
    finally:
        for _, writer in hanging:
            writer.close()
        await runner.cleanup()
