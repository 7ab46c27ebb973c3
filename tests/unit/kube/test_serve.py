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
import yaml

from atoll_operator.kube.edges.api import KINDS, LEASES, NODES, jobs_path, lease_path, path
from atoll_operator.kube.election import TIMES
from atoll_operator.local.supervisor import free_ports
from unit.kube.api_server import SECONDS_MAX, ApiServer, serving, until
from unit.kube.cluster_values import MANIFEST

KINDS_BY_PATH = {path(kind, ""): kind for kind in KINDS} | {
    jobs_path(""): "DecoupledTrainingJob", NODES: "Node", LEASES: "Lease",
}  # fmt: skip


LEASES_OF_OPERATORS = "/apis/coordination.k8s.io/v1/leases"
OWN_LEASE = lease_path("demo", "atoll-operator")


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
        for _ in range(int(SECONDS_MAX / 0.1)):
            if await self.role() == role:
                return
            await asyncio.sleep(0.1)
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
        sys.executable, "-m", "atoll_operator", env=environment,
        stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    return Replica(f"http://127.0.0.1:{port}", process)


@asynccontextmanager
async def replicas(server: ApiServer, folder: Path, count: int) -> AsyncIterator[list[Replica]]:
    """So many processes of one install."""
    async with serving(server, folder) as config:
        found: list[Replica] = []
        try:
            for _ in range(count):
                found.append(await replica(config))
            yield found
        finally:
            for each in found:
                if each.process.returncode is None:
                    each.process.kill()
                    await each.process.wait()


@asynccontextmanager
async def operator(server: ApiServer, folder: Path) -> AsyncIterator[str]:
    """One process; yields the URL of its probes."""
    async with replicas(server, folder, 1) as (one,):
        yield one.url
        await one.ends()


async def probe(url: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.json()


def tiny() -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(MANIFEST)
    raw["spec"]["syncer"] = {"shards": 1}
    return raw | {"metadata": {"generation": 1}}


def writers(server: ApiServer) -> int:
    """How often something was written, but for the Lease."""
    leases = (OWN_LEASE, lease_path("demo"))
    reads = ("LIST", "WATCH")
    return sum(verb not in reads and where not in leases for verb, where in server.requests)


async def quiet(server: ApiServer) -> None:
    """Wait until nothing is being written."""
    before = -1
    while before != writers(server):
        before = writers(server)
        await asyncio.sleep(2.0)


def test_a_watch_that_is_refused_comes_back_and_the_process_lives_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = ApiServer(kinds=KINDS_BY_PATH)
        jobs = jobs_path("")
        async with operator(server, tmp_path) as url:
            await until(lambda: all(server.watchers[each] for each in KINDS_BY_PATH))
            assert (await probe(f"{url}/readyz"))[0] == 200
            for where in KINDS_BY_PATH:
                server.refusals[where] = (404, {})
                server.end_watches(where)
            lists = server.count("LIST", jobs)
            await until(lambda: server.count("LIST", jobs) > lists + 1)
            status, body = await probe(f"{url}/livez")
            assert (status, body["problems"]) == (200, [])
            server.refusals.clear()
            await until(lambda: all(server.watchers[each] for each in KINDS_BY_PATH))
            server.put(jobs, "tiny", **tiny())
            made = path("StatefulSet", "demo", "tiny-us-east")
            await until(lambda: server.count("PATCH", made) > 0)  # it hears of a new job

    asyncio.run(scenario())


def test_a_standby_is_ready_and_writes_nothing_until_the_leader_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        server, jobs = ApiServer(kinds=KINDS_BY_PATH), jobs_path("")
        async with replicas(server, tmp_path, 1) as found:
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
            server.put(jobs, "tiny", **tiny())
            await until(lambda: server.count("LIST", OWN_LEASE) > looks + 1)
            assert await second.role() == "standby"
            assert not writers(server)
            first.process.send_signal(signal.SIGCONT)
            made = path("StatefulSet", "demo", "tiny-us-east")
            await until(lambda: server.count("PATCH", made) > 0)
            await first.ends()
            await second.becomes("leader")
            server.drop("/apis/apps/v1/statefulsets", "tiny-us-east")
            count = server.count("PATCH", made)
            await until(lambda: server.count("PATCH", made) > count)

    asyncio.run(scenario())


def test_a_leader_that_was_stopped_and_goes_on_writes_nothing(tmp_path: Path) -> None:
    """Stopped for longer than its Lease, with work that waits for it."""

    async def scenario() -> None:
        server, jobs = ApiServer(kinds=KINDS_BY_PATH), jobs_path("")
        async with replicas(server, tmp_path, 1) as found:
            (first,) = found
            await first.becomes("leader")
            server.put(jobs, "tiny", **tiny())
            made = path("StatefulSet", "demo", "tiny-us-east")
            await until(lambda: server.count("PATCH", made) > 0)
            await quiet(server)  # what it had sent before it was stopped would arrive after it
            first.process.send_signal(signal.SIGSTOP)
            lease = server.items[LEASES_OF_OPERATORS][0]
            spec = {**lease["spec"], "holderIdentity": "another"}
            server.put(LEASES_OF_OPERATORS, "atoll-operator", spec=spec)
            server.drop("/apis/apps/v1/statefulsets", "tiny-us-east")
            await asyncio.sleep(TIMES.renew_seconds_max)
            before = writers(server)
            first.process.send_signal(signal.SIGCONT)
            await first.becomes("standby")
            assert writers(server) == before
            (lease,) = server.items[LEASES_OF_OPERATORS]
            assert lease["spec"]["holderIdentity"] == "another"
            await first.ends()
            assert server.items[LEASES_OF_OPERATORS] == [lease]

    asyncio.run(scenario())
