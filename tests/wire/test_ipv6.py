"""A shard is reached over IPv6, and over IPv4 where there is no IPv6."""

import sys
import urllib.request
from pathlib import Path

import grpc
import pytest

from atoll_protos.network.addresses import joined
from wire.fixtures import SECONDS_MAX, first_commit, peer, shard

TESTS = Path(__file__).resolve().parents[1]
WITHOUT_IPV6 = (sys.executable, str(TESTS / "no_ipv6.py"))


@pytest.mark.parametrize(
    ("host", "under"), [("::1", ()), ("127.0.0.1", WITHOUT_IPV6)], ids=["ipv6", "no-ipv6"]
)
async def test_a_shard_listens_on_all_addresses(
    tmp_path: Path, host: str, under: tuple[str, ...]
) -> None:
    """As in pods, which say 0.0.0.0; without IPv6 as on a kernel with ipv6.disable=1."""
    with shard(tmp_path, under=under, host="0.0.0.0") as served:
        port = int(served.endpoint.rpartition(":")[2])
        async with peer(joined(host, port), "here-0") as learner:
            await first_commit(served, learner)
        url = f"http://{joined(host, served.metrics_port)}/metrics"
        with urllib.request.urlopen(url, timeout=SECONDS_MAX) as reply:  # noqa: ASYNC210
            assert b"atoll_syncer_commits_total 1.0" in reply.read()
        with grpc.insecure_channel(joined(host, served.health_port)) as channel:
            grpc.channel_ready_future(channel).result(SECONDS_MAX)
