"""The operator behind a proxy, a job that trains all the time, and what jobs own unspoilt."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_operator.local.startable import free_ports
from cluster.api_faults.faulty import Proxy
from cluster.api_faults.world import (
    CONVERGES_SECONDS_MAX,
    CRD,
    LEASE,
    ApiServer,
    World,
    edit,
    lives,
    settled,
)
from cluster.conftest import LabCommand
from cluster.kubectl import Kubectl, until
from cluster.training import Job, pace


@pytest.fixture
def world(
    lab: LabCommand, clusters: list[Kubectl], namespace: str, early: None, tmp_path: Path
) -> Iterator[World]:
    kube = clusters[1]
    kube("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    kube.establish("decoupledtrainingjobs.atoll.dev")
    proxy = Proxy(kube.kubeconfig, tmp_path)
    config = proxy.start()
    (port,) = free_ports(1)
    environment = {
        **os.environ,
        "KUBECONFIG": str(config),
        "ATOLL_WORKER_IMAGE": "atoll.test/atoll-worker:test",
        "ATOLL_SYNCER_IMAGE": "atoll.test/atoll-syncer:test",
        "ATOLL_OPERATOR_NAMESPACES": namespace,
        "ATOLL_OPERATOR_HTTP_PORT": str(port),
        "ATOLL_OPERATOR_LEASE": f"{namespace}/{LEASE}",
    }
    command = [sys.executable, "-m", "atoll_operator"]
    with (
        (tmp_path / "operator.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        found = World(kube=kube, namespace=namespace, proxy=proxy, process=process, port=port)
        try:
            until("the operator leads", found.leads)
            yield found
            assert process.poll() is None, "the operator has ended by itself"
            process.terminate()
            assert process.wait(CONVERGES_SECONDS_MAX) == 0
        finally:
            process.kill()
            proxy.stop()


@pytest.fixture
def steady(world: World) -> Iterator[Job]:
    """A job that trains; when the test is over it has the pods that it had, never started again."""
    job = world.apply("steady", {"eu-west": 1}, learner=pace(500))
    job.trains(1)
    before = lives(job)
    yield job
    assert lives(job) == before
    job.trains(1)


@pytest.fixture
def edits(world: World) -> tuple[set[str], set[str]]:
    """What a job of two regions owns, and what after an edit, where nothing is spoilt."""
    job = world.apply("model", {"eu-west": 2, "us-east": 1})
    first = settled(world, job)
    edit(job)
    until("the edit is made", lambda: settled(world, job) != first, CONVERGES_SECONDS_MAX)
    second = settled(world, job)
    job.kubectl("delete", "dtj", job.name, "--wait=false")
    return first, second


@pytest.fixture
def api_server(lab: LabCommand, clusters: list[Kubectl]) -> Iterator[ApiServer]:
    """The second cluster's; whatever becomes of the test, the next one finds it ready."""
    found = ApiServer.found(lab, clusters[1])
    yield found
    found.put_back()
