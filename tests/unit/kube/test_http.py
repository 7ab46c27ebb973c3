"""The operator answers probes and scrapes at whichever address its pod has."""

import asyncio

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from atoll_operator.kube.edges import http
from atoll_operator.kube.health import Ages, ElectionAge, Health
from atoll_operator.local.supervisor import free_ports
from atoll_protos.addresses import joined

LEADER = ElectionAge(leads=True, holder="a", tried=1.0, answering=1.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_probes_and_scrapes_are_answered_over_either_family(host: str) -> None:
    (port,) = free_ports(1)

    async def scenario() -> list[int]:
        def check() -> Health:
            return Health(problems=(), ages=Ages(election=LEADER))

        runner = await http.serve(port, check, check, CollectorRegistry())
        try:
            async with aiohttp.ClientSession(f"http://{joined(host, port)}") as client:
                found = []
                for path in ("/livez", "/metrics"):
                    async with client.get(path) as reply:
                        found.append(reply.status)
                return found
        finally:
            await runner.cleanup()

    assert asyncio.run(scenario()) == [200, 200]
