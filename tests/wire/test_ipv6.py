"""All processes of a job meet over IPv6 alone, and over IPv4 where there is no IPv6."""

import os
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest

from atoll_protos.environment import MEETING_PORT, Env, of_hosts, of_learner, of_process
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.network.addresses import joined
from atoll_protos.transfer.codecs import Wire
from wire.fake_pods import Pod, pods
from wire.fixtures import SECONDS_MAX, first_commit, peer, shard, shard_command

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = TESTS / "wire" / "ipv6_script.py"
WITHOUT_IPV6 = (sys.executable, str(TESTS / "no_ipv6.py"))
HOSTS = 2
SHARD_PORT, METRICS_PORT, HEALTH_PORT = 7700, 9090, 7701
JOB = RunFile(
    job="six",
    regions=(Region(name="here", learners=2),),
    shards=1,
    seed=1,
    steps=24,
    sync=Sync(fragments=1, period=8, wire_up=Wire.F32, wire_down=Wire.F32, lockstep=True),
)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make network namespaces")
def test_a_shard_a_learner_and_a_learner_of_two_hosts_meet_over_ipv6_alone(tmp_path: Path) -> None:
    with pods(tmp_path, "shard", "host-0", "host-1", "alone") as (place, *hosts, alone):
        ports = ("--health-port", str(HEALTH_PORT), "--metrics-port", str(METRICS_PORT))
        listen = f"0.0.0.0:{SHARD_PORT}"
        place.start(shard_command(tmp_path, listen, *ports, run_file=JOB), given(tmp_path))
        for number, host in enumerate(hosts):
            host.start(launch(), {**given(tmp_path, "here-0"), **of_host(number, hosts[0])})
        alone.start([sys.executable, str(SCRIPT)], given(tmp_path, "here-1"))
        for url in (
            f"http://{joined(place.address, METRICS_PORT)}/metrics",
            *(f"http://{joined(host.address, HEALTH_PORT)}/" for host in hosts),
        ):
            assert alone.asked(url)
        codes = {pod.name: pod.ended() for pod in (*hosts, alone)}
        said = {pod.name: pod.log.read_text() for pod in (place, *hosts, alone)}
    assert codes == dict.fromkeys(codes, 0), said
    assert (tmp_path / "tape.jsonl").read_text().count('"event": "commit"') > 1, said
    assert "noticed late" not in "".join(said.values())


def given(folder: Path, slot: str = "") -> dict[str, str]:
    """The environment of a process in a pod; of a learner if it has a slot."""
    found = {**os.environ, "OMP_NUM_THREADS": "1"}
    if slot:
        found |= of_process(run_file=str(folder / "run.json"), endpoints=f"shard:{SHARD_PORT}")
        found |= {**of_learner(region="here", slot=slot), Env.UID: slot}
    return found


def launch() -> list[str]:
    return [sys.executable, "-m", "atoll_worker", "launch", "--", str(SCRIPT)]


def of_host(number: int, first: Pod) -> dict[str, str]:
    return {
        **of_hosts(
            slot="here-0",
            hosts=HOSTS,
            hosts_min=HOSTS,
            processes=1,
            first_host=joined(first.name, MEETING_PORT),
            host=number,
        ),
        Env.HEALTH_PORT: str(HEALTH_PORT),
    }
