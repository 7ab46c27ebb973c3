"""Where the shards of a job in a cluster are, for `atoll export`, `top` and `plot`.

They are found by a person's own rights. The addresses of shards mean something only inside the
cluster, so they are read in a shard's pod, and what was read comes back through `kubectl exec`.
Where there is no kubectl, such as in a pod, what a shard's pod was started with tells how to reach
the shards: the list of endpoints, and the ConfigMap that holds the run file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client

from atoll_operator.kube.logs import Logs, connect
from atoll_operator.kube.names import LEARNER_ROLE, RUN_FILE, SHARD_ROLE
from atoll_operator.kube.person import CALL_SECONDS_MAX, REMEDY, refused
from atoll_operator.kube.plan.pods import RUN_VOLUME
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.names import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """What an observer of the job needs to know, and a pod from which its shards are reachable."""

    run_file: str
    endpoints: list[str]
    namespace: str
    pod: str
    container: str

    def command(self, kubectl: str, context: str) -> list[str]:
        """The words that run a Python module in the shard's pod: append its arguments."""
        chosen = ["--context", context] if context else []
        where = ["-n", self.namespace, "exec", self.pod, "-c", self.container]
        return [kubectl, *chosen, *where, "--", "python3", "-P", "-m"]


def shards_of(job: str, namespace: str, context: str) -> Shards:
    """Raises SpecError for a job without shards, and for a cluster that does not answer."""
    logs = connect(job, namespace, context)
    with _told_to_a_person(job):
        pods = _pods(logs, SHARD_ROLE)
        if not pods:
            problem = f"has no shards in the namespace {logs.namespace}"
            remedy = "a job that is over has none: its status.exportURL says where the model is"
            if _pods(logs, LEARNER_ROLE):
                remedy = "its learners here dial a syncer in another cluster: give its --context"
            raise SpecError(job, problem, remedy)
        pod = min(pods, key=_order)
        name = _config_map(pod)
        found = logs.core.read_namespaced_config_map(
            name, logs.namespace, _request_timeout=CALL_SECONDS_MAX
        )
    container, endpoints = _container(pod)
    return Shards(
        run_file=found.data[RUN_FILE],
        endpoints=endpoints,
        namespace=logs.namespace,
        pod=pod.metadata.name,
        container=container,
    )


def commands_of_learners(job: str, namespace: str, context: str) -> list[list[str]]:
    """What each pod of a learner runs, in words; none while there are no pods. Raises SpecError."""
    logs = connect(job, namespace, context)
    with _told_to_a_person(job):
        pods = _pods(logs, LEARNER_ROLE)
    return [
        [
            word
            for container in pod.spec.containers
            for word in (*(container.command or ()), *(container.args or ()))
        ]
        for pod in pods
    ]


def nodes_of(job: str, namespace: str, context: str) -> dict[str, str]:
    """By slot, shard-N or evaluator, the node on which it runs. Raises SpecError.

    Of a learner of several hosts that of the first, and how many nodes it has besides.
    """
    found: dict[str, dict[str, None]] = {}
    for each in connect(job, namespace, context).pods():
        if each.node:
            found.setdefault(each.learner or each.process, {})[each.node] = None
    return {
        name: next(iter(nodes)) + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
        for name, nodes in found.items()
    }


def _pods(logs: Logs, role: str) -> list[Any]:
    """The job's pods of a role."""
    selector = f"{Label.JOB}={logs.job},{Label.ROLE}={role}"
    listed = logs.core.list_namespaced_pod(
        logs.namespace, label_selector=selector, _request_timeout=CALL_SECONDS_MAX
    )
    return list(listed.items)


@contextmanager
def _told_to_a_person(job: str) -> Iterator[None]:
    """What the cluster refuses, or that it does not answer, as a SpecError."""
    try:
        yield
    except client.ApiException as error:
        raise refused(job, error) from error
    except urllib3.exceptions.HTTPError as error:
        raise SpecError(job, f"the cluster does not answer ({error})", REMEDY) from error


def _order(pod: Any) -> tuple[bool, str]:
    """Pods that run come first."""
    running = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    return not running, str(pod.metadata.name)


def _config_map(pod: Any) -> str:
    """The one that holds the run file."""
    for volume in pod.spec.volumes or ():
        if volume.name == RUN_VOLUME and volume.config_map is not None:
            return str(volume.config_map.name)
    raise SpecError(
        pod.metadata.name, "mounts no run file", "use the atoll of the operator's version"
    )


def _container(pod: Any) -> tuple[str, list[str]]:
    """The one that runs the shard, and the endpoints of all shards."""
    for container in pod.spec.containers:
        for variable in container.env or ():
            if variable.name == Env.ENDPOINTS and variable.value:
                return str(container.name), str(variable.value).split(",")
    raise SpecError(
        pod.metadata.name, f"has no {Env.ENDPOINTS}", "use the atoll of the operator's version"
    )
