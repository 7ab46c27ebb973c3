"""Links between clusters: a proxy that delays and limits what goes through it.

Toxiproxy, built from the Go module proxy, since the kernels of test machines often have no netem.
It listens on the bridge of the lab, so that what goes through it can be cut off and counted where
a cluster's pods leave their node (`network.cut_off`, `network.counted_bytes`).
"""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.lab.binaries import tool
from cluster.lab.processes import SECONDS_MAX, kill, start, wait_for

PROGRAM = "toxiproxy"
PACKAGE = "github.com/Shopify/toxiproxy/v2/cmd/server"
HOST, PORT = "127.0.0.1", 22900  # of its API; no cluster has the ports from here on


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One way from cluster to cluster, which is alike in both directions."""

    name: str
    listen: str  # host:port
    upstream: str  # host:port
    delay_milliseconds: int = 50  # one way
    bits_per_second: int = 100_000_000  # each way


def program() -> Path:
    return tool("links", PROGRAM, PACKAGE)


def serve(folder: Path) -> int:
    """Start the proxy, which has no links yet, and return its pid; `down` ends it, too.

    Its log is written to the folder.
    """
    log = folder / f"{PROGRAM}.log"
    pid = start([program(), "-host", HOST, "-port", str(PORT)], log)
    wait_for(f"{PROGRAM} answers", _answers, SECONDS_MAX, log)
    return pid


def end(pid: int) -> None:
    kill(pid)


def lay(link: Link) -> None:
    """Open a link; connections to `listen` reach `upstream` through it."""
    proxy = {"name": link.name, "listen": link.listen, "upstream": link.upstream, "enabled": True}
    _ask("/proxies", proxy)
    slow = {
        "latency": {"latency": link.delay_milliseconds},
        "bandwidth": {"rate": link.bits_per_second // 8000},  # kB/s
    }
    for stream in ("upstream", "downstream"):
        for kind, attributes in slow.items():
            toxic = {"type": kind, "stream": stream, "attributes": attributes}
            _ask(f"/proxies/{link.name}/toxics", toxic)


def _ask(path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://{HOST}:{PORT}{path}", data=data, timeout=5) as answer:
        return json.loads(answer.read())


def _answers() -> bool:
    try:
        _ask("/proxies")
    except OSError:
        return False
    return True
