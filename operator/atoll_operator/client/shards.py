"""Where the shards of a job in a cluster are, for `atoll export` and `top`.

Their addresses mean something only inside the cluster, so they are read in a shard's pod, and what
was read comes back through `kubectl exec`.
"""

from dataclasses import dataclass
from typing import Any

from kubernetes import client

from atoll_operator.client.reach import CALL_SECONDS_MAX, ClusterReach, asking, reach
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.names import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A pod from which the shards of a job are reachable."""

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
    cluster = reach(job, namespace, context)
    pods = _pods(cluster, job, SHARD_ROLE)
    if not pods:
        problem = f"has no shards in the namespace {cluster.namespace}"
        remedy = "a job that is over has none: its status.exportURL says where the model is"
        if _pods(cluster, job, LEARNER_ROLE):
            remedy = "its learners here dial a syncer in another cluster: give its --context"
        raise SpecError(job, problem, remedy)
    pod = min(pods, key=_order)
    return Shards(namespace=cluster.namespace, pod=pod.metadata.name, container=_container(pod))


def nodes_of(job: str, namespace: str, context: str) -> dict[str, str]:
    """By process, its node; of several hosts the first and how many more. Raises SpecError."""
    found: dict[str, dict[str, None]] = {}
    shards: dict[str, str] = {}
    pods = _pods(reach(job, namespace, context), job)
    for pod in sorted(pods, key=lambda pod: (not _is_ready(pod), pod.metadata.name)):
        labels, node = pod.metadata.labels, pod.spec.node_name
        role = labels.get(Label.ROLE, "")
        if node and role == SHARD_ROLE:
            shards.setdefault(f"shard-{labels.get(Label.SHARD, '')}", node)
        elif node:
            alone = pod.metadata.name.removeprefix(f"{job}-") if role == LEARNER_ROLE else role
            found.setdefault(labels.get(Label.SLOT) or alone, {})[node] = None
    return {
        name: next(iter(nodes)) + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
        for name, nodes in found.items()
    } | shards


def _pods(cluster: ClusterReach, job: str, role: str = "") -> list[Any]:
    """The job's pods, or those of a role. Raises SpecError."""
    selector = f"{Label.JOB}={job}" + (f",{Label.ROLE}={role}" if role else "")
    with asking(job):
        listed = client.CoreV1Api(cluster.api).list_namespaced_pod(
            cluster.namespace, label_selector=selector, _request_timeout=CALL_SECONDS_MAX
        )
    return list(listed.items)


def _is_ready(pod: Any) -> bool:
    conditions = pod.status.conditions or ()
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def _order(pod: Any) -> tuple[bool, str, bool, str]:
    """Shard 0 before the others, and of its pods the one that serves: it has the tape."""
    running = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    shard = (pod.metadata.labels or {}).get(Label.SHARD, "")
    return not running, shard, not _is_ready(pod), str(pod.metadata.name)


def _container(pod: Any) -> str:
    for container in pod.spec.containers:
        if any(variable.name == Env.ENDPOINTS for variable in container.env or ()):
            return str(container.name)
    raise SpecError(
        pod.metadata.name, f"has no {Env.ENDPOINTS}", "use the atoll of the operator's version"
    )
