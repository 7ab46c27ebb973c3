"""Memory of the operator in a large cluster: 5,000 nodes of 20 kB, 2,000 pods of 20 kB.

The operator's process reads them from a small API server in this one, as it would from a real one:
in pages, then by watches.

In tests/: python -m bench.nodes [--nodes 5000] [--pods 2000] [--json FILE]
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import KINDS, LEASES, NODES, path
from atoll_protos.names import Label
from bench.results import Figure, option, publish
from unit.kube.api_server import ApiServer, serving

LIST_SECONDS_MAX = 300.0
PODS = path("Pod", "")
IMAGES = [{"names": [f"registry.example/team/image-{n}@sha256:{n:064}"]} for n in range(120)]
ENV = [{"name": f"VARIABLE_{n}", "value": "x" * 60} for n in range(100)]
FIELDS = [{"manager": "kubelet", "fieldsV1": {f"f:field-{n}": {"f:x": {}} for n in range(150)}}]


def node(number: int) -> dict[str, Any]:
    """Some 20 kB, of which most is images and managed fields."""
    labels = {f"label.example/{n}": f"value-{n}" for n in range(40)}
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    conditions = [{"type": kind, "status": "True", "message": "m" * 60} for kind in kinds]
    return {
        "metadata": {"labels": labels, "managedFields": FIELDS},
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"cloud://{number}"},
        "status": {"conditions": conditions, "images": IMAGES},
    }


def pod(number: int) -> dict[str, Any]:
    """Some 20 kB, of which most is variables and managed fields."""
    container = {"name": "learner", "image": "registry.example/train:1", "env": ENV}
    return {
        "metadata": {"labels": {Label.JOB: f"job-{number % 50}"}, "managedFields": FIELDS},
        "spec": {"nodeName": f"n{number}", "containers": [container]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }


def memory(process: int) -> int:
    """Return the most resident memory of a process so far, in MiB."""
    text = Path(f"/proc/{process}/status").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines["VmHWM"].split()[0]) // 1024


async def measure(nodes: int, pods: int) -> int:
    kinds = {path(kind, ""): kind for kind in KINDS}
    kinds |= {path(KIND, ""): KIND, NODES: "Node", LEASES: "Lease"}
    server = ApiServer(kinds=kinds)
    for number in range(nodes):
        server.put(NODES, f"n{number}", **node(number))
        spec = {"renewTime": "2026-01-01T00:00:00Z", "leaseDurationSeconds": 40}
        server.put(LEASES, f"n{number}", spec=spec)
    for number in range(pods):
        server.put(PODS, f"p{number}", **pod(number))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        async with serving(server, Path(folder)) as config:
            environment = {
                **os.environ, "KUBECONFIG": str(config), "ATOLL_OPERATOR_HTTP_PORT": str(port),
                "ATOLL_WORKER_IMAGE": "w", "ATOLL_SYNCER_IMAGE": "s",
            }  # fmt: skip
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "atoll_operator", env=environment,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                async with asyncio.timeout(LIST_SECONDS_MAX):
                    while not all(server.watchers[each] for each in kinds):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                return memory(process.pid)
            finally:
                process.kill()
                await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=2000)
    option(parser)
    given = parser.parse_args()
    figures = []
    for nodes, pods in ((0, 0), (given.nodes, given.pods)):
        most = asyncio.run(measure(nodes, pods))
        what = f"memory with {nodes:,} nodes and {pods:,} pods, at most"
        figures.append(Figure(what=what, values=[most], unit="MiB"))
    publish(given, figures, about="Nodes and pods of 20 kB.")


if __name__ == "__main__":
    main()
