"""A gateway in front of the shards of two jobs, set up as docs/clusters.md shows it."""

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.local.startable import free_ports
from atoll_protos.network.credentials import JobIdentity, Role
from wire.fixtures import (
    OTHER_JOB,
    OWNER,
    RUN_FILE,
    SECONDS_MAX,
    Issuer,
    ShardUnderTest,
    peer,
    status,
    tls_shard,
    until,
    who,
)

PAGE = Path(__file__).resolve().parents[2] / "docs/clusters.md"
SERVER = "server shard-0 10.200.1.1:30700"
BACKENDS = "backend apart.team.job.atoll.dev"


@contextlib.contextmanager
def gateway(folder: Path, shards: dict[str, ShardUnderTest]) -> Iterator[str]:
    """HAProxy with the page's configuration, and a backend for each server name; its address."""
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        pytest.skip("needs haproxy: apt-get install haproxy")
    found = re.search(r"```haproxy\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    front, backend = found[1].split(BACKENDS)
    (port,) = free_ports(1)
    text = front.replace("bind :7700", f"bind 127.0.0.1:{port}")
    for name, process in shards.items():
        assert SERVER in backend
        server = SERVER.rpartition(" ")[0]
        text += f"backend {name}{backend.replace(SERVER, f'{server} {process.endpoint}')}\n"
    assert f"127.0.0.1:{port}" in text
    file = folder / "haproxy.cfg"
    file.write_text(text)
    subprocess.run([program, "-c", "-f", file], check=True)
    with (folder / "haproxy.log").open("wb") as log:
        running = subprocess.Popen([program, "-db", "-f", file], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not listens(port):
            assert time.monotonic() < deadline, (folder / "haproxy.log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
        assert running.poll() is None, (folder / "haproxy.log").read_text()
    finally:
        running.terminate()
        running.wait(SECONDS_MAX)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.long
def test_one_port_serves_the_shards_of_two_jobs_by_the_name_that_their_clients_send(
    tmp_path: Path,
) -> None:
    issuers = {owner.job: Issuer(owner) for owner in (OWNER, OTHER_JOB)}
    folders = {job: tmp_path / job for job in issuers}
    for folder in folders.values():
        folder.mkdir()
    first, second = issuers
    with (
        tls_shard(folders[first], issuers[first]) as one,
        tls_shard(folders[second], issuers[second]) as other,
    ):
        shards = {who(owner=OWNER).server_name: one, who(owner=OTHER_JOB).server_name: other}
        with gateway(tmp_path, shards) as address:
            for job, issuer in issuers.items():
                assert status(address, issuer.leaf(Role.OPERATOR)).state == pb.SHARD_SEEDING, job
                asyncio.run(seeds(address, issuer))
            nobody = Issuer(JobIdentity(namespace="team", job="nobody", uid="1"))
            with pytest.raises(grpc.RpcError) as refused:
                status(address, nobody.leaf(Role.OPERATOR))
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


async def seeds(address: str, issuer: Issuer) -> None:
    """Join as a learner, and send the first values until the shard serves them."""
    async with peer(address, "here-0", credentials=issuer.leaf()) as learner:
        await learner.ready_to_seed()
        for fragment in range(RUN_FILE.sync.fragment_count):
            await learner.send(learner.frames(fragment))
        operator = issuer.leaf(Role.OPERATOR)
        await until(lambda: status(address, operator).state == pb.SHARD_SERVING)
