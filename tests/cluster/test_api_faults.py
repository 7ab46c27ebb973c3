"""What the API server may do to the operator: it converges, makes nothing twice, deletes no wrong.

One operator runs here as a process, against the API server of the lab's second cluster, through a
proxy that spoils what a test wants spoilt (`faulty`). Jobs need no node for that: what counts are
the objects that the operator makes. One job trains all the time, and must see nothing.
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import LabCommand
from cluster.faulty import Proxy, Refusal
from cluster.kubectl import Kubectl, until
from cluster.lab.layout import run_folder
from cluster.lab.processes import CLUSTER_MARK, start
from cluster.training import Job, manifest, pace, pass_seconds

pytestmark = pytest.mark.timeout(1200)

CRD = Path(__file__).resolve().parents[2] / "crds/decoupledtrainingjobs.yaml"
LEASE = "replica"
CHILDREN = "configmaps,deployments,poddisruptionbudgets,services,serviceaccounts,statefulsets,pvc"
CONVERGES_SECONDS_MAX = 180.0
SPOILT_SECONDS = 15.0
AWAY_SECONDS = 300.0
CALLS_A_MINUTE_MAX = 400  # of one operator that makes two jobs against every fault
CALLS_AWAY_A_MINUTE_MAX = 250  # of one whose API server cuts its connections: 13 watches, the Lease
HASH = re.compile(r"-[0-9a-f]{6,}$")  # in the name of a run file
REFUSALS: dict[int, dict[str, str]] = {
    404: {}, 409: {}, 410: {}, 422: {}, 429: {"Retry-After": "2"}, 500: {}, 503: {},
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class World:
    """One operator, its proxy, and a namespace of the second cluster."""

    kube: Kubectl
    namespace: str
    proxy: Proxy
    process: subprocess.Popen[bytes]
    port: int

    def probe(self, name: str) -> tuple[int, dict[str, Any]]:
        """The status and the body of a probe."""
        url = f"http://127.0.0.1:{self.port}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def leads(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.probe("readyz")[1]["role"] == "leader")
        return False

    def apply(self, name: str, regions: dict[str, int], **spec: object) -> Job:
        """Apply a job whose pods need no node."""
        job = Job(kube=self.kube, namespace=self.namespace, name=name)
        self.kube.apply(self.namespace, manifest(name, regions, **spec))
        return job

    def children(self, job: Job) -> dict[str, str]:
        """UIDs of all that a job owns but its pods, by kind and name."""
        selector = f"atoll.dev/job={job.name}"
        found = self.kube.get("-n", self.namespace, CHILDREN, "-l", selector)["items"]
        own = job.get()["metadata"]["uid"]
        assert all(each["metadata"]["ownerReferences"][0]["uid"] == own
                   for each in found if each["kind"] != "PersistentVolumeClaim")  # fmt: skip
        return {
            f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["uid"] for each in found
        }

    def shape(self, job: Job) -> set[str]:
        """What a job owns, without what its own name and its run lend to names."""
        found = set()
        for each in self.children(job):
            kind, _, name = each.partition("/")
            found.add(f"{kind} {HASH.sub('-HASH', name.removeprefix(job.name))}")
        sets = self.kube.get("-n", self.namespace, "sts", "-l", f"atoll.dev/job={job.name}")
        for each in sets["items"]:
            rest = each["metadata"]["name"].removeprefix(job.name)
            found.add(f"replicas of {rest}: {each['spec'].get('replicas')}")
        return found

    def comes_to(self, job: Job, shape: set[str]) -> None:
        until(
            f"{job.name} has what it should", lambda: self.shape(job) == shape,
            CONVERGES_SECONDS_MAX,
        )  # fmt: skip

    def deletions(self, moment: float) -> list[str]:
        """The paths of objects that the API server was asked to delete, and that it had."""
        found = self.proxy.since(moment)
        return [each.path for each in found if each.verb == "delete" and each.status == 200]


@pytest.fixture
def world(
    lab: LabCommand, clusters: list[Kubectl], namespace: str, tmp_path: Path
) -> Iterator[World]:
    del lab
    kube = clusters[1]
    kube("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    kube("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    proxy = Proxy(kube.kubeconfig, tmp_path)
    config = proxy.start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
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
            until("the operator leads", found.leads, 60)
            yield found
            assert process.poll() is None, "the operator has ended by itself"
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            proxy.stop()


@pytest.fixture
def steady(world: World) -> Iterator[Job]:
    """A job that trains; when the test is over it has the pods that it had, never started again."""
    job = world.apply("steady", {"eu-west": 1}, learner=pace(500))
    job.trains(1)
    before = _lives(job)
    yield job
    assert _lives(job) == before
    job.trains(1)


def _lives(job: Job) -> dict[str, tuple[str, int]]:
    return {
        name: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for name, pod in job.pods().items()
    }


@pytest.fixture
def edits(world: World) -> tuple[set[str], set[str]]:
    """What a job of two regions owns, and what after an edit, where nothing is spoilt."""
    job = world.apply("model", {"eu-west": 2, "us-east": 1})
    first = _settled(world, job)
    _edit(job)
    until("the edit is made", lambda: _settled(world, job) != first, CONVERGES_SECONDS_MAX)
    second = _settled(world, job)
    job.kubectl("delete", "dtj", job.name, "--wait=false")
    return first, second


@pytest.mark.long
def test_half_of_all_requests_refused_with_any_status_change_nothing_of_what_comes_out(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    begun = time.monotonic()
    for status in REFUSALS:
        job = Job(kube=world.kube, namespace=world.namespace, name=f"under-{status}")
        world.proxy.faults.refuses = _half(status, seed=status)
        world.apply(job.name, {"eu-west": 2, "us-east": 1})
        pass_seconds(SPOILT_SECONDS)
        world.proxy.faults.refuses = _none
        world.comes_to(job, first)
        made, moment = world.children(job), time.monotonic()
        world.proxy.faults.refuses = _half(status, seed=status + 1)
        _edit(job)
        pass_seconds(SPOILT_SECONDS)
        world.proxy.faults.refuses = _none
        world.comes_to(job, second)
        now = world.children(job)
        kept = {name: uid for name, uid in made.items() if not name.startswith("ConfigMap")}
        assert kept.items() <= now.items(), status
        wrong = [each for each in world.deletions(moment) if "/configmaps/" not in each]
        assert not wrong, status  # an edit replaces run files alone
        job.kubectl("delete", "dtj", job.name, "--wait=false")
    _assert_at_most(CALLS_A_MINUTE_MAX, world.proxy.busiest_minute(begun))
    assert world.probe("livez")[0] == 200


@pytest.mark.long
def test_watches_that_break_off_again_and_again_lose_no_edit(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    begun, job = time.monotonic(), world.apply("broken", {"eu-west": 2, "us-east": 1})
    for _ in range(4):
        world.proxy.break_off()
        pass_seconds(2.0)
    world.comes_to(job, first)
    made = world.children(job)
    world.proxy.break_off()
    _edit(job)
    world.proxy.break_off()
    world.comes_to(job, second)
    kept = {name: uid for name, uid in made.items() if not name.startswith("ConfigMap")}
    assert kept.items() <= world.children(job).items()
    _assert_at_most(CALLS_A_MINUTE_MAX, world.proxy.busiest_minute(begun))


def test_an_api_server_that_is_killed_and_starts_again_in_the_middle_of_a_run(
    world: World, steady: Job, edits: tuple[set[str], set[str]], lab: LabCommand
) -> None:
    first, second = edits
    del steady
    job = world.apply("restarted", {"eu-west": 2, "us-east": 1})
    for shape in (first, second):
        _restart(lab, world.kube)
        if shape is second:
            _edit(job)
        world.comes_to(job, shape)
    until("it leads again", world.leads, CONVERGES_SECONDS_MAX)
    assert world.probe("readyz")[0] == 200


@pytest.mark.long
def test_five_minutes_without_an_api_server_fail_no_probe_and_end_no_process(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    job = world.apply("alone", {"eu-west": 2, "us-east": 1})
    world.comes_to(job, first)
    made, moment = world.children(job), time.monotonic()
    world.proxy.faults.away = True
    world.proxy.break_off()
    _edit(job)
    while time.monotonic() - moment < AWAY_SECONDS:
        pass_seconds(20.0)
        assert world.probe("livez")[0] == 200
        assert world.probe("readyz")[0] == 200, world.probe("readyz")
    assert world.probe("readyz")[1]["role"] == "standby"
    _assert_at_most(CALLS_AWAY_A_MINUTE_MAX, world.proxy.busiest_minute(moment))
    assert world.children(job) == made
    back = time.monotonic()
    world.proxy.faults.away = False
    world.comes_to(job, second)
    kept = {name: uid for name, uid in made.items() if not name.startswith("ConfigMap")}
    assert kept.items() <= world.children(job).items()
    assert not [each for each in world.deletions(back) if "/configmaps/" not in each]


@pytest.mark.long
def test_a_watch_that_hangs_is_left_and_fails_readiness_while_it_cannot_be_begun(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    job = world.apply("hangs", {"eu-west": 2, "us-east": 1})
    world.comes_to(job, first)
    where = f"/apis/apps/v1/namespaces/{world.namespace}/statefulsets"
    world.proxy.faults.hangs = where.__eq__
    until("it is not ready", lambda: world.probe("readyz")[0] == 503, 300)
    body = world.probe("readyz")[1]
    assert [each for each in body["problems"] if each.startswith(where)], body
    assert len(body["problems"]) == 1, body
    assert body["role"] == "leader"
    _edit(job)
    moment = time.monotonic()
    pass_seconds(10.0)
    assert not world.deletions(moment)  # what cannot be seen is not judged
    assert world.probe("livez")[0] == 200
    world.proxy.faults.hangs = _nowhere
    world.comes_to(job, second)
    until("it is ready", lambda: world.probe("readyz")[0] == 200, 60)


@pytest.mark.long
def test_a_connection_that_died_without_a_word_is_replaced_and_nothing_is_missed(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    """Watches that are open hang, new ones work: half-open connections after a lost router."""
    first, second = edits
    del steady
    job = world.apply("half", {"eu-west": 2, "us-east": 1})
    world.comes_to(job, first)
    made = world.children(job)
    world.proxy.hang_what_is_open()
    _edit(job)
    world.comes_to(job, second)
    kept = {name: uid for name, uid in made.items() if not name.startswith("ConfigMap")}
    assert kept.items() <= world.children(job).items()
    assert world.probe("livez")[0] == 200


@pytest.mark.long
def test_answers_that_take_four_seconds_each_delay_and_change_nothing(
    world: World, steady: Job, edits: tuple[set[str], set[str]]
) -> None:
    first, second = edits
    del steady
    job = world.apply("slow", {"eu-west": 2, "us-east": 1})
    world.comes_to(job, first)
    made, moment = world.children(job), time.monotonic()
    world.proxy.faults.delay_seconds = 4.0
    _edit(job)
    world.comes_to(job, second)
    world.proxy.faults.delay_seconds = 0.0
    kept = {name: uid for name, uid in made.items() if not name.startswith("ConfigMap")}
    assert kept.items() <= world.children(job).items()
    assert not [each for each in world.deletions(moment) if "/configmaps/" not in each]
    assert world.leads()


def _settled(world: World, job: Job) -> set[str]:
    """What a job owns once that has not changed for three seconds."""
    found: list[set[str]] = []

    def same() -> bool:
        found.append(world.shape(job))
        time.sleep(1.0)
        return len(found) > 3 and bool(found[-1]) and found[-1] == found[-2] == found[-3]

    until("nothing changes", same, CONVERGES_SECONDS_MAX)
    return found[-1]


def _edit(job: Job) -> None:
    """Another region, and a learner less in the first one."""
    job.patch(
        regions=[{"name": name, "learners": 1} for name in ("eu-west", "us-east", "ap-south")]
    )


def _half(status: int, seed: int) -> Any:
    """Refuse every second request by chance, but for those of the election."""
    chance = random.Random(seed)

    def refuses(verb: str, path: str) -> Refusal | None:
        del verb
        if path.endswith(f"/leases/{LEASE}") or chance.random() < 0.5:
            return None
        return status, REFUSALS[status]

    return refuses


def _assert_at_most(calls: int, minute: Counter[str]) -> None:
    sys.stderr.write(f"\n{minute.total()} requests in the busiest minute\n")
    assert minute.total() <= calls, minute.most_common()


def _none(verb: str, path: str) -> Refusal | None:
    del verb, path
    return None


def _nowhere(path: str) -> bool:
    del path
    return False


def _restart(lab: LabCommand, kube: Kubectl) -> None:
    """Kill the second cluster's API server and start it again as it was, until it is ready.

    The kernel frees the port of a killed process only after the last of its threads has gone, so
    one that finds the port taken, and ends, is started once more.
    """
    pid = lab.status()["clusters"][1]["pids"]["kube-apiserver"]
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    log = run_folder() / "c2/log/kube-apiserver.log"
    os.kill(pid, signal.SIGKILL)
    until("it has ended", lambda: not _runs(pid), 60)
    pids = [start(command, log, {CLUSTER_MARK: "c2"})]

    def ready() -> bool:
        if not _runs(pids[-1]):
            pids.append(start(command, log, {CLUSTER_MARK: "c2"}))
        return not kube.attempt("get", "--raw", "/readyz").returncode

    try:
        until("the API server is ready", ready, 120)
    except AssertionError:
        sys.stderr.write(f"API servers {pids}\n{log.read_text()[-4000:]}")
        raise


def _runs(pid: int) -> bool:
    """Whether a thread of the process is left; its first one may be a zombie before the others."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if thread.read_text().rpartition(")")[2].split()[0] != "Z":
                return True
    return False
