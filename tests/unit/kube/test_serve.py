"""The operator's process against an API server that goes away and comes back."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import KINDS, LEASES, NODES, path
from atoll_operator.kube.serve import end_of_first
from atoll_operator.local.startable import free_ports
from unit.kube.api_server import SECONDS_MAX, ApiServer, serving, until
from unit.kube.cluster_values import MANIFEST

JOBS = path(KIND, "")
KINDS_BY_PATH = {path(kind, ""): kind for kind in KINDS} | {
    JOBS: "DecoupledTrainingJob", NODES: "Node", LEASES: "Lease",
}  # fmt: skip
SETS = "/apis/apps/v1/statefulsets"
MADE = path("StatefulSet", "demo", "tiny-us-east")
OWN_LEASE = path("Lease", "demo", "atoll-operator")
PROGRAM = """
from atoll_operator.kube.edges import election, watches

election.TIMES = election.Times(retry_seconds=0.1)
watches.RETRY_SECONDS = (0.05, 0.2)
from atoll_operator import __main__
__main__.main()
"""  # the operator, which does not wait for long


@dataclass
class Replica:
    """The real process."""

    url: str  # of its probes
    process: asyncio.subprocess.Process

    async def role(self) -> str:
        with contextlib.suppress(aiohttp.ClientError):
            return str((await probe(f"{self.url}/readyz"))[1]["role"])
        return ""

    async def becomes(self, role: str) -> None:
        for _ in range(int(SECONDS_MAX / 0.05)):
            if await self.role() == role:
                return
            await asyncio.sleep(0.05)
        raise TimeoutError

    async def ends(self) -> None:
        """In good order."""
        assert self.process.returncode is None
        self.process.terminate()
        assert await asyncio.wait_for(self.process.wait(), SECONDS_MAX) == 0


async def replica(config: Path) -> Replica:
    """Start one more."""
    (port,) = free_ports(1)
    environment = {
        **os.environ,
        "KUBECONFIG": str(config),
        "ATOLL_WORKER_IMAGE": "w",
        "ATOLL_SYNCER_IMAGE": "s",
        "ATOLL_OPERATOR_HTTP_PORT": str(port),
        "ATOLL_OPERATOR_LEASE": "demo/atoll-operator",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=environment,
        stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    return Replica(f"http://127.0.0.1:{port}", process)


@asynccontextmanager
async def replicas(server: ApiServer, folder: Path) -> AsyncIterator[list[Replica]]:
    """A process of an install; more may be added."""
    async with serving(server, folder) as config:
        found = [await replica(config)]
        try:
            yield found
        finally:
            for each in found:
                if each.process.returncode is None:
                    each.process.kill()
                    await each.process.wait()


async def probe(url: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.json()


def tiny() -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(MANIFEST)
    raw["spec"]["syncer"] = {"shards": 1}
    return raw | {"metadata": {"generation": 1}}


def writes(server: ApiServer) -> int:
    """How often something was written, but for the Lease."""
    leases, reads = (OWN_LEASE, path("Lease", "demo")), ("LIST", "WATCH")
    return sum(verb not in reads and where not in leases for verb, where in server.requests)


async def test_a_standby_is_ready_and_writes_nothing_until_the_leader_ends(tmp_path: Path) -> None:
    server = ApiServer(kinds=KINDS_BY_PATH)
    async with replicas(server, tmp_path) as found:
        (first,) = found
        await first.becomes("leader")
        second = await replica(tmp_path / "kubeconfig")
        found.append(second)
        await second.becomes("standby")
        await until(lambda: all(len(server.watchers[each]) == 2 for each in KINDS_BY_PATH))
        assert (await probe(f"{second.url}/readyz"))[0] == 200
        assert (await probe(f"{second.url}/livez"))[0] == 200
        first.process.send_signal(signal.SIGSTOP)
        looks = server.count("LIST", OWN_LEASE)
        server.put(JOBS, "tiny", **tiny())
        await until(lambda: server.count("LIST", OWN_LEASE) > looks + 1)
        assert await second.role() == "standby"
        assert not writes(server)
        first.process.send_signal(signal.SIGCONT)
        await until(lambda: server.count("PATCH", MADE) > 0)
        await first.ends()
        await second.becomes("leader")
        server.drop(SETS, "tiny-us-east")
        count = server.count("PATCH", MADE)
        await until(lambda: server.count("PATCH", MADE) > count)


@pytest.mark.parametrize("stops", [True, False])
async def test_a_part_that_ends_ends_all_and_a_signal_in_good_order(stops: bool) -> None:
    stop, part = (
        asyncio.create_task(asyncio.sleep(0 if ends else 60)) for ends in (stops, not stops)
    )
    raised = pytest.raises(RuntimeError, match="a part of the operator has ended")
    with contextlib.nullcontext() if stops else raised:
        await end_of_first(stop, [part])
    for each in (stop, part):
        each.cancel()
