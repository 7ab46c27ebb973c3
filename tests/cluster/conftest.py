"""A cluster for the tests: the one that KUBECONFIG names, or an own one that is removed after."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.dockerfiles import help_of_the_operators_image
from cluster.installed import OPERATOR_NODE, Installed
from cluster.kubectl import Kubectl, until
from cluster.lab import lifecycle, roles
from cluster.lab.layout import Cluster, run_folder
from cluster.lab.processes import of_lab
from cluster.training import Job, light, trained
from cluster.typed import Shell, commands_of_the_readme
from local.stores import servers
from local.stores.servers import Place

COMMAND = Path(__file__).resolve().parent
BUILD = "operators_build"
NODES = {"us-east": 2, "eu-west": 5, "ap-south": 1}
UP = (
    "up", "--json", "--clusters", "2",
    "--nodes", ",".join(f"{region}={count}" for region, count in NODES.items()),
    "--nodes", "eu-west=1",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Walk:
    """The README's commands for Kubernetes: its job, and the line that waits for it."""

    job: Job
    shell: Shell
    waits: str


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
    """Run what needs the session's clusters late: no other test shares the machine with them.

    The README's example trains beside the tests of the second cluster, and is looked at before
    other tests cut nodes of the first one.
    """

    def turn(item: pytest.Item) -> int:
        if COMMAND not in item.path.parents:
            return 0
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures.isdisjoint({"lab", "clusters", BUILD}):
            return 1
        order = {"world": 2, "walking": 3, BUILD: 5}
        return next((turn for name, turn in order.items() if name in fixtures), 4)

    items.sort(key=turn)


@pytest.fixture(scope="session")
def prepared() -> None:
    """Skip where no cluster can be made; where CI is set, as it is in .ci/run, fail."""
    if reason := lifecycle.why_not():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[LabCommand]:
    """Return the command, with two clusters up that the tests may break and must heal."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names a cluster whose nodes are not ours to cut")
    request.getfixturevalue("prepared")
    command = LabCommand()
    was_up = run_folder().exists()
    command(*UP)
    if was_up:
        command("load")  # this checkout's images
    if any(BUILD in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue(BUILD)
    yield command
    if not was_up:
        command("down")


@pytest.fixture(scope="session")
def operators_build(
    prepared: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[str]]:
    """Build the operator's Dockerfile beside tests that mostly wait for a cluster."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(help_of_the_operators_image, tmp_path_factory.mktemp("buildah"))


@pytest.fixture
def empty_machine(request: pytest.FixtureRequest) -> LabCommand:
    """Return the command, with nothing up."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names the cluster to test, so none is to be made here")
    request.getfixturevalue("prepared")
    command = LabCommand()
    if run_folder().exists() or of_lab():
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
    return clusters[0]


@pytest.fixture(scope="session")
def image_of() -> Callable[[str], str]:
    """Name the image of a role, as ATOLL_IMAGES does with {role} in it for another cluster."""
    pattern = os.environ.get("ATOLL_IMAGES")
    return lambda role: pattern.format(role=role) if pattern else roles.name(role)


@pytest.fixture(scope="session")
def worker_image(image_of: Callable[[str], str]) -> str:
    """Name the image of a learner, which has Python and torch in it."""
    return image_of("worker")


@contextlib.contextmanager
def a_namespace(clusters: Sequence[Kubectl]) -> Iterator[str]:
    """A namespace with restricted pod security in these clusters, which is removed after."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    for kubectl in clusters:
        kubectl("create", "namespace", name)
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=600s")
        kubectl.apply(name, light())
    yield name
    for kubectl in clusters:
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def namespace(clusters: list[Kubectl]) -> Iterator[str]:
    """Make a namespace of this test in every cluster."""
    with a_namespace(clusters) as name:
        yield name


@pytest.fixture(scope="module")
def shared_namespace(clusters: list[Kubectl]) -> Iterator[str]:
    """Make a namespace of the tests of this file in every cluster."""
    with a_namespace(clusters) as name:
        yield name


@contextlib.contextmanager
def a_bucket(kube: Kubectl, namespace: str, folder: Path) -> Iterator[Place]:
    """A server's that listens where the pods reach the API server; its keys are in a Secret."""
    with servers.moto(folder, Cluster(index=1, nodes=()).address) as server:
        words = [f"--from-literal={name}={each}" for name, each in server.environment.items()]
        kube("-n", namespace, "create", "secret", "generic", "bucket-keys", *words)
        yield server.place()


def storage_in(place: Place) -> dict[str, str]:
    """Where shards keep their state, as the manifest says it."""
    words = {"url": place.url, "endpoint": place.endpoint, "secret": "bucket-keys"}
    return {"type": "ObjectStore", **words}


@pytest.fixture
def bucket(kube: Kubectl, lab: object, namespace: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Storage of shards in a bucket."""
    with a_bucket(kube, namespace, tmp_path) as place:
        yield storage_in(place)


@pytest.fixture(scope="session")
def walking(
    atoll: Installed, kube: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Walk]:
    """The README's walk, begun in a namespace of its own; the chart is there already.

    No node has the label of the job's region.
    """
    helm, *applied, waits = commands_of_the_readme()
    assert helm.startswith("helm install atoll helm/atoll ")
    with a_namespace([kube]) as name:
        shell = Shell.made(tmp_path_factory.mktemp("walk"), kube)
        shell(f"kubectl config set-context --current --namespace={name}")
        shell("\n".join(applied))
        yield Walk(Job(kube=kube, namespace=name, name="quickstart"), shell, waits)


@pytest.fixture(scope="session")
def early(request: pytest.FixtureRequest) -> None:
    """Begin the example, where a test looks at it later."""
    if any("walking" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("walking")


@pytest.fixture
def train(atoll: Installed, kube: Kubectl, namespace: str) -> Callable[..., Job]:
    """Apply a job with steps of 0.3 s, and return it once all its learners train."""
    return partial(trained, kube, namespace)


@pytest.fixture(scope="module")
def train_for_all(atoll: Installed, kube: Kubectl, shared_namespace: str) -> Callable[..., Job]:
    """The same, for a job that the tests of a file share."""
    return partial(trained, kube, shared_namespace)


@pytest.fixture
def cut(lab: LabCommand, kube: Kubectl) -> Iterator[Callable[..., None]]:
    """Lose nodes; all of them are back and Ready after the test."""
    lost: list[str] = []

    def lose(*nodes: str, how: str = "power") -> None:
        lost.extend(nodes)
        lab("cut", *nodes, "--how", how)

    yield lose
    if lost:
        lab("heal", *lost)
        healed = time.time()
        for node in lost:
            until(f"{node} Ready again", lambda node=node: kube.node_lives(node, healed))  # type: ignore[misc]


@pytest.fixture(scope="session")
def atoll(
    request: pytest.FixtureRequest, kube: Kubectl, image_of: Callable[[str], str]
) -> Installed:
    """Install the chart on the main cluster; the operator stays off the nodes that tests lose."""
    values = {f"images.{role}": image_of(role) for role in ("operator", "worker", "syncer")}
    if os.environ.get("KUBECONFIG"):
        helm = shutil.which("helm")
        assert helm, "KUBECONFIG is set, but there is no helm on the PATH"
    else:
        helm = f"{request.getfixturevalue('lab').status()['programs']}/helm"
        values[r"nodeSelector.kubernetes\.io/hostname"] = OPERATOR_NODE
        values["podAnnotations.session"] = uuid.uuid4().hex  # new pods: their tag stays the same
    installed = Installed(kube=kube, helm=helm)
    installed.install(values)
    return installed
