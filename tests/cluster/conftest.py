"""A cluster for the tests: the one that KUBECONFIG names, or an own one that is removed after."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.kubectl import Kubectl

COMMAND = Path(__file__).resolve().parent
REGIONS = ("us-east", "eu-west", "ap-south")
UP = (
    "up", "--json", "--clusters", "2",
    "--nodes", ",".join(f"{region}=2" for region in REGIONS), "--nodes", "eu-west=1",
    "--share", f"python={sysconfig.get_path('purelib')}",
)  # fmt: skip


class LabCommand:
    """The command `python tests/cluster`, as tests call it."""

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, COMMAND, *words], capture_output=True, text=True, check=False
        )

    def __call__(self, *words: str) -> str:
        done = self.attempt(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self("status", "--json"))
        return status

    def node(self, name: str) -> dict[str, Any]:
        nodes = [node for cluster in self.status()["clusters"] for node in cluster["nodes"]]
        found: dict[str, Any] = next(node for node in nodes if node["name"] == name)
        return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what needs a machine without a cluster before the session's cluster is made."""
    items.sort(key=lambda item: "empty_machine" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def lab() -> Iterator[LabCommand]:
    """Return the command, with two clusters up that the tests may break and must heal."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names a cluster whose nodes are not ours to cut")
    command = LabCommand()
    was_up = command.attempt("status").returncode == 0
    command(*UP)
    yield command
    if not was_up:
        command("down")


@pytest.fixture
def empty_machine() -> LabCommand:
    """Return the command, with nothing up."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names the cluster to test, so none is to be made here")
    command = LabCommand()
    if command.attempt("status").returncode == 0:
        pytest.skip("needs a machine without a cluster: `python tests/cluster down` first")
    return command


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest) -> list[Kubectl]:
    """Return every cluster there is, the main one first."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if kubeconfig:
        program = shutil.which("kubectl")
        assert program, "KUBECONFIG is set, but there is no kubectl on the PATH"
        return [Kubectl(program=program, kubeconfig=kubeconfig)]
    status = request.getfixturevalue("lab").status()
    program = f"{status['programs']}/kubectl"
    return [Kubectl(program=program, kubeconfig=c["kubeconfig"]) for c in status["clusters"]]


@pytest.fixture(scope="session")
def kube(clusters: list[Kubectl]) -> Kubectl:
    """Return the main cluster."""
    return clusters[0]


@pytest.fixture(scope="session")
def python_image() -> str:
    """Name an image with Python in it that the nodes have or can pull."""
    default = "python:3-slim" if os.environ.get("KUBECONFIG") else "atoll.test/python:3"
    return os.environ.get("ATOLL_TEST_IMAGE", default)


@pytest.fixture
def namespace(clusters: list[Kubectl]) -> Iterator[str]:
    """Make a namespace with restricted pod security in every cluster, and remove it after."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    for kubectl in clusters:
        kubectl("create", "namespace", name)
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=20s")
    yield name
    for kubectl in clusters:
        kubectl("delete", "namespace", name, "--wait=false")
