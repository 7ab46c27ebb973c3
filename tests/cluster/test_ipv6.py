"""A cluster that has IPv6 alone: nodes, pods and Services."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.test_hosts import HOSTS, LENGTH, SLOTS, TICKS, example
from cluster.training import TRAIN_SECONDS_MAX, Job

UP = ("up", "--json", "--ipv6", "--nodes", "us-east=2,eu-west=2")
NAMESPACE = "six"


@pytest.fixture
def kube_ipv6(empty_machine: LabCommand, image_of: Callable[[str], str]) -> Iterator[Kubectl]:
    """The cluster, with the chart installed."""
    empty_machine(*UP)
    status = empty_machine.status()
    (cluster,) = status["clusters"]
    kube = Kubectl(program=f"{status['programs']}/kubectl", kubeconfig=cluster["kubeconfig"])
    values = {f"images.{role}": image_of(role) for role in ("operator", "worker", "syncer")}
    Installed(kube=kube, helm=f"{status['programs']}/helm").install(values)
    kube("create", "namespace", NAMESPACE)
    yield kube
    empty_machine("down")


@pytest.mark.long  # a lab of its own
@pytest.mark.timeout(1200)
def test_learners_of_two_hosts_train_to_the_end_where_pods_have_ipv6_alone(
    kube_ipv6: Kubectl,
) -> None:
    job = Job(kube=kube_ipv6, namespace=NAMESPACE, name="hosts")
    kube_ipv6.apply(NAMESPACE, example(steps=LENGTH))
    job.trains(len(SLOTS))
    pods = {**job.pods("learner"), **job.pods("shard")}
    assert len(pods) == len(SLOTS) * HOSTS + 1
    for pod in pods.values():
        (address,) = (each["ip"] for each in pod["status"]["podIPs"])
        assert ":" in address
    (shard,) = job.pods("shard")
    where = f"/api/v1/namespaces/{NAMESPACE}/pods/{shard}:9090/proxy/metrics"
    assert "atoll_syncer_" in kube_ipv6("get", "--raw", where)
    until("all probes are answered", lambda: all(map(_is_ready, job.pods().values())))
    job.patch(steps=TICKS)  # only now: what is looked at above is gone when it has ended
    until("Complete", lambda: job.is_true("Complete"), TRAIN_SECONDS_MAX)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
