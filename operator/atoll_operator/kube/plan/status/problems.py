"""What is wrong with a job's pods and claims, in sentences for its status."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE
from atoll_operator.kube.observed.objects import STARTING_WAITS
from atoll_operator.kube.observed.observation import KILLED, Object, Pod
from atoll_operator.kube.observed.quantities import quantity
from atoll_operator.kube.plan.losses.replacements import Placement
from atoll_operator.kube.plan.manifest.phase import said_by
from atoll_operator.kube.plan.shard_processes import is_spare
from atoll_protos.exits import RETURNED, ExitCode, is_failure

ATTACHED: Final = "Multi-Attach error"
OFF: Final = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


class Problems(NamedTuple):
    """In sentences."""

    shards: list[str]
    learners: list[str]
    spares: list[str]  # of shards that another pod serves


def problems(
    pods: Sequence[Pod], placement: Placement, joined: frozenset[str] | None = None
) -> Problems:
    """What is wrong with the pods, one sentence per pod.

    `joined` holds the UIDs of pods whose learner has a session (None: not known, or the job is
    final). It tells a learner that has come back from one that ended a moment ago.
    """
    shards: list[str] = []
    learners: list[str] = []
    spares: list[str] = []
    lost = placement.lost
    for pod in pods:
        if pod.ended:
            continue
        said, reason = "", f" ({pod.exit_reason})" if pod.exit_reason else ""
        where = f" on {pod.node}" if pod.exit_code == ExitCode.BAD_DEVICE else ""
        if pod.node in lost:
            said = f"{pod.name} is on {pod.node}, which is {lost[pod.node]}"
        elif pod.unschedulable:
            said = f"{pod.name} waits for a node: {pod.unschedulable}"
        elif pod.held_up:
            said = f"{pod.name} cannot start on {pod.node}: {pod.held_up}{_detaching(pod, lost)}"
        elif pod.waiting not in STARTING_WAITS:
            own = pod.exit_code is not None and "container " not in pod.waiting
            code = f", last exit code {pod.exit_code}{reason}" if own else ""
            words = said_by(pod) if own else ""
            words = words or (f": {pod.details}" if pod.details else "")
            said = f"{pod.name} waits{where}: {pod.waiting}{code}{words}"
        elif _comes_back(pod) and joined is not None and pod.uid not in joined:
            said = f"{pod.name} is started again{where}, last exit code {pod.exit_code}{reason}"
            said += said_by(pod)
        if said and is_spare(pod, pods):
            spares.append(without_standby(pod.shard, said))
        elif said:
            (shards if pod.role == SHARD_ROLE else learners).append(said)
    learners += [
        f"{name} has used its spec.failure.maxReplacementsPerSlot of a day"
        for name in placement.exhausted
    ]
    return Problems(sorted(shards), sorted(learners), sorted(spares))


def _detaching(pod: Pod, lost: Collection[str]) -> str:
    """What frees a disk that is attached to a lost node, which Kubernetes does after 6 minutes."""
    (node, *_) = (*(each for each in pod.excluded if each in lost), "")
    if not node or ATTACHED not in pod.held_up:
        return ""
    return f"; if {node} is off, and not only cut off: kubectl taint node {node} {OFF}"


def without_standby(shard: int, said: str) -> str:
    return f"shard {shard} has no standby: {said}"


def _comes_back(pod: Pod) -> bool:
    """Whether a learner's container runs again after an end that was no kill and not asked for."""
    if pod.role != LEARNER_ROLE or not pod.runs or pod.exit_code is None or pod.terminating:
        return False
    failed = is_failure(pod.exit_code) and pod.exit_code not in KILLED
    return failed or RETURNED in pod.exit_message


def unbound_claims(children: Iterable[Object]) -> list[str]:
    """Claims that no volume is bound to, one sentence per claim.

    A claim may wait for its pod and the pod for its claim, so this is said only beside a pod that
    cannot be scheduled: the scheduler's words do not name the claim or its storage class.
    """
    found = []
    for each in children:
        if each["kind"] != "PersistentVolumeClaim":
            continue
        if (each.get("status") or {}).get("phase") == "Pending":
            given = each["spec"].get("storageClassName")
            of_class = f" of the storage class {given}" if given else ""
            found.append(f"claim {each['metadata']['name']}{of_class} has no volume yet")
    return sorted(found)


def larger_claims(children: Iterable[Object], size: str) -> list[str]:
    """Claims that are larger than `spec.syncer.storage.size`, one sentence per claim."""
    found, asked = [], quantity(size)
    for each in children:
        if each["kind"] != "PersistentVolumeClaim":
            continue
        has = each.get("spec", {}).get("resources", {}).get("requests", {}).get("storage")
        given = quantity(has)
        if asked is not None and given is not None and given > asked:
            found.append(f"claim {each['metadata']['name']} keeps its {has}: no volume shrinks")
    return sorted(found)
