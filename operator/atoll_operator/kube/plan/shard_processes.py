"""The processes of one shard: the only one, or one that serves and one that waits (rule 20).

With spec.syncer.standby a shard has two Deployments of one pod. Both are alike: whoever has the
term serves, and the pod of the other is started and not Ready for as long as it waits. So a pod
that is not Ready is a trouble of the shard only where no other one is (`is_spare`).
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from atoll_operator.api.job.spec import Job
from atoll_operator.kube.names import SHARD_ROLE, processes_of
from atoll_operator.kube.observed.observation import Pod


class ProcessState(StrEnum):
    """What a shard's process does, as its pod shows."""

    SERVES = "serves"
    WAITS = "waits"
    DOWN = "down"  # or it starts, or ends


def is_spare(pod: Pod, pods: Iterable[Pod]) -> bool:
    """Whether another pod of the same shard serves, so that nothing is lost with this one."""
    return pod.role == SHARD_ROLE and any(
        each.role == SHARD_ROLE and each.shard == pod.shard and each.uid != pod.uid and serves(each)
        for each in pods
    )


def serves(pod: Pod) -> bool:
    return pod.ready and not pod.terminating


def state_of(own: Iterable[Pod], pods: Sequence[Pod]) -> ProcessState:
    """Of the process that has the pods `own`, among all pods of the job."""
    present = [pod for pod in own if not pod.terminating and not pod.ended]
    if any(serves(pod) for pod in present):
        return ProcessState.SERVES
    if any(pod.started and is_spare(pod, pods) for pod in present):
        return ProcessState.WAITS
    return ProcessState.DOWN


def waits_beside_the_other(pod: Pod, pods: Sequence[Pod]) -> bool:
    """Whether it only waits, on the node of the one that serves, with which it would be lost."""
    return state_of([pod], pods) is ProcessState.WAITS and any(
        each.role == SHARD_ROLE and each.shard == pod.shard and each.node == pod.node
        for each in pods
        if serves(each)
    )


def is_wanted(pod: Pod, job: Job) -> bool:
    """Whether the job asks for the shard's process that this pod is."""
    return pod.shard < job.spec.syncer.shards and pod.process in processes_of(job)


def standbys(job: Job, pods: Sequence[Pod]) -> int | None:
    """Shards whose other process waits, so that it can take over; None: the job asks for none."""
    if not job.spec.syncer.standby:
        return None
    waiting = {
        pod.shard
        for pod in pods
        if pod.role == SHARD_ROLE and state_of([pod], pods) is ProcessState.WAITS
    }
    return len(waiting)
