"""The operator's process against an API server that goes away and comes back."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from atoll_operator.kube.edges.api import KINDS, LEASES, NODES, jobs_path, path
from unit.kube.api_server import ApiServer, serving, until
from unit.kube.cluster_values import MANIFEST

KINDS_BY_PATH = {path(kind, ""): kind for kind in KINDS} | {
    jobs_path(""): "DecoupledTrainingJob", NODES: "Node", LEASES: "Lease",
}  # fmt: skip


@asynccontextmanager
async def operator(server: ApiServer, folder: Path) -> AsyncIterator[str]:
    """The real process; yields the URL of its probes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with serving(server, folder) as config:
        environment = {
            **os.environ,
            "KUBECONFIG": str(config),
            "ATOLL_WORKER_IMAGE": "w",
            "ATOLL_SYNCER_IMAGE": "s",
            "ATOLL_OPERATOR_HTTP_PORT": str(port),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "atoll_operator", env=environment,
            stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
            assert process.returncode is None
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 20) == 0
        finally:
            if process.returncode is None:
                process.kill()


async def probe(url: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.json()


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
            await until(lambda: server.count("LIST", jobs) > 1)
            status, body = await probe(f"{url}/livez")
            assert (status, body["problems"]) == (200, [])
            server.refusals.clear()
            await until(lambda: all(server.watchers[each] for each in KINDS_BY_PATH))
            raw = yaml.safe_load(MANIFEST)
            raw["spec"]["syncer"] = {"shards": 1}
            server.put(jobs, "tiny", **(raw | {"metadata": {"generation": 1}}))
            made = path("StatefulSet", "demo", "tiny-us-east")
            await until(lambda: server.count("PATCH", made) > 0)  # it hears of a new job

    asyncio.run(scenario())
