"""The operator answers probes and scrapes at whichever address its pod has."""

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from atoll_operator.kube.edges import http
from atoll_operator.kube.health import Health, Signs
from atoll_operator.local.supervision.ports import free_ports
from atoll_protos.network.addresses import joined

LEADER = Signs(now=1.0, leads=True, holder="a", tried_at=1.0, answering_since=1.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_probes_and_scrapes_are_answered_over_either_family(host: str) -> None:
    (port,) = free_ports(1)

    def check() -> Health:
        return Health(problems=(), signs=LEADER)

    runner = await http.serve(port, check, check, CollectorRegistry())
    try:
        async with aiohttp.ClientSession(f"http://{joined(host, port)}") as client:
            for path in ("/livez", "/metrics"):
                async with client.get(path) as reply:
                    assert reply.status == 200
    finally:
        await runner.cleanup()
