"""The leader is killed with -9 in the middle of every kind of change, and all comes right."""

import contextlib
import json
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job, manifest, pace

GROUPS = {"configmaps": "/api/v1", "statefulsets": "/apis/apps/v1"}
CHANGE_SECONDS_MAX = 300.0

Killed = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def killed(lab: LabCommand, atoll: Installed, kube: Kubectl, namespace: str) -> Killed:
    """Kill the leader's process as soon as something of a kind changes within the `with`."""
    del lab

    @contextlib.contextmanager
    def upon(kind: str) -> Iterator[None]:
        atoll.fresh()
        pod, holder = atoll.leader(), atoll.holder()
        with _first_change(kube, namespace, kind) as changed:
            yield
            changed()
            atoll.kill(pod)
        until("it is started again", lambda: atoll.restarts()[pod] == 1)
        atoll.another_leads(holder)

    return upon


@contextlib.contextmanager
def _first_change(kube: Kubectl, namespace: str, kind: str) -> Iterator[Callable[[], None]]:
    """Watch a kind from now on; what is yielded returns with the first change."""
    where = f"{GROUPS[kind]}/namespaces/{namespace}/{kind}"
    version = json.loads(kube("get", "--raw", where))["metadata"]["resourceVersion"]
    with subprocess.Popen(
        [kube.program, f"--kubeconfig={kube.kubeconfig}", "get", "--raw",
         f"{where}?watch=true&resourceVersion={version}"],
        stdout=subprocess.PIPE,
    ) as watch:  # fmt: skip
        events = watch.stdout
        assert events is not None

        def wait() -> None:
            changed, _, _ = select.select([events], [], [], CHANGE_SECONDS_MAX)
            assert changed, f"no change of {kind} within {CHANGE_SECONDS_MAX:.0f} s"

        try:
            yield wait
        finally:
            watch.kill()


@pytest.mark.long
def test_every_change_comes_to_its_end(
    killed: Killed, cut: Callable[..., None], kube: Kubectl, namespace: str
) -> None:
    job = Job(kube=kube, namespace=namespace, name="torn")
    regions = {"us-east": 1, "eu-west": 1}
    two = [{"name": name, "learners": count} for name, count in regions.items()]
    with killed("configmaps"):
        kube.apply(namespace, manifest(job.name, regions, learner=pace(300)))
    job.trains(2)
    before, run = job.uids(), job.status().run  # type: ignore[union-attr]
    _assert_one_of_each(job, {"us-east-0", "eu-west-0"})

    with killed("statefulsets"):
        job.patch(regions=[{**two[0], "learners": 2}, two[1]])
    job.trains(3)
    assert before.items() <= job.uids().items()
    with killed("statefulsets"):
        job.patch(regions=two)
    until("two are left", lambda: job.uids() == before)

    with killed("statefulsets"):
        job.patch(learner=pace(250))
    until("both are new", lambda: not before.items() & job.uids("learner").items())
    job.trains(2)
    assert job.uids("shard").items() <= before.items()
    _assert_one_of_each(job, {"us-east-0", "eu-west-0"})

    before, node = job.uids(), job.node_of("torn-eu-west-0")
    with killed("statefulsets"):
        cut(node, how="power")
    until("replaced", lambda: job.node_of("torn-eu-west-0") not in ("", node))
    job.trains(2)
    del before["torn-eu-west-0"]
    assert before.items() <= job.uids().items()

    with killed("statefulsets"):
        job.patch(suspend=True)
    until("suspended", lambda: job.is_true("Suspended"))
    assert not job.pods("learner")
    with killed("statefulsets"):
        job.patch(suspend=False)
    job.trains(2)
    assert job.status().run == run  # type: ignore[union-attr]
    _assert_one_of_each(job, {"us-east-0", "eu-west-0"})

    with killed("statefulsets"):
        job.kubectl("delete", "dtj", job.name, "--wait=false")
    left = ("get", "all,cm,pdb,sa", "-l", f"atoll.dev/job={job.name}", "-o", "name")
    until("nothing is left", lambda: not job.kubectl(*left))


@pytest.mark.long
def test_completion_comes_to_its_end(killed: Killed, kube: Kubectl, namespace: str) -> None:
    job = Job(kube=kube, namespace=namespace, name="ends")
    kube.apply(namespace, manifest(job.name, {"us-east": 1}, steps=60, learner=pace(300)))
    job.trains(1)
    with killed("statefulsets"):
        until("complete", lambda: job.is_true("Complete"))
    until("no pod is left", lambda: not job.pods())
    assert job.is_true("Complete")


def _assert_one_of_each(job: Job, slots: set[str]) -> None:
    assert set(job.pods("learner")) == {f"{job.name}-{slot}" for slot in slots}
    assert len(job.pods("shard")) == 1
    budgets = job.kubectl("get", "pdb", "-l", f"atoll.dev/job={job.name}", "-o", "name").split()
    assert len(budgets) == 2
