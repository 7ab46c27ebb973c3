"""Where the shards of a job in a cluster are, for `atoll export`, `top` and `plot`.

Their addresses mean something only inside the cluster, so they are read in a shard's pod, and what
was read comes back through `kubectl exec`.
"""

from dataclasses import dataclass
from typing import Any

from atoll_operator.client.pod_logs import connect, is_ready
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
    logs = connect(job, namespace, context)
    pods = logs.listed(SHARD_ROLE)
    if not pods:
        problem = f"has no shards in the namespace {logs.namespace}"
        remedy = "a job that is over has none: its status.exportURL says where the model is"
        if logs.listed(LEARNER_ROLE):
            remedy = "its learners here dial a syncer in another cluster: give its --context"
        raise SpecError(job, problem, remedy)
    pod = min(pods, key=_order)
    return Shards(namespace=logs.namespace, pod=pod.metadata.name, container=_container(pod))


def nodes_of(job: str, namespace: str, context: str) -> dict[str, str]:
    """By process, its node; of several hosts the first and how many more. Raises SpecError.

    Of a shard with a standby also that of the process that waits.
    """
    found: dict[str, dict[str, None]] = {}
    shards: dict[str, dict[str, str]] = {}
    for each in sorted(connect(job, namespace, context).pods(), key=lambda each: not each.ready):
        if each.node and each.shard:
            shards.setdefault(each.shard, {}).setdefault(each.process, each.node)
        elif each.node:
            found.setdefault(each.learner or each.process, {})[each.node] = None
    return {
        name: next(iter(nodes)) + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
        for name, nodes in found.items()
    } | {name: ", standby on ".join(nodes.values()) for name, nodes in shards.items()}


def _order(pod: Any) -> tuple[bool, str, bool, str]:
    """Shard 0 before the others, and of its pods the one that serves: it has the tape."""
    running = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    shard = (pod.metadata.labels or {}).get(Label.SHARD, "")
    return not running, shard, not is_ready(pod), str(pod.metadata.name)


def _container(pod: Any) -> str:
    for container in pod.spec.containers:
        if any(variable.name == Env.ENDPOINTS for variable in container.env or ()):
            return str(container.name)
    raise SpecError(
        pod.metadata.name, f"has no {Env.ENDPOINTS}", "use the atoll of the operator's version"
    )
