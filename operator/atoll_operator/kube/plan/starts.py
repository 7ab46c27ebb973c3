"""Learners that are not in training because they start, for the first time or as they were told.

Nothing is wrong with them, so no condition calls the job degraded for them, as no Deployment or
JobSet is called so while its pods start. A slot that is not in training counts as starting for at
most STARTING_SECONDS_MAX, as long as nothing is wrong with its pod, in these cases:

    never trained   the job is new, has grown, or another cluster's region has yet to join; after
                    a resume the shards may know of no slot either
    a new template  this operator has deleted the pod for it (an edit, `kubectl rollout restart`)
    was terminated  its learner said so (Leave), because its pod was deleted in an orderly way: by a
                    suspension, the operator of another cluster, a drain, a person

What was lost, crashed, hangs or is stuck is none of these, nor is a pod that has trained already.
The time counts from the making of the present pod. Where there is none, as in another cluster, it
counts from the moment at which the job began to ask for the slot, or at which its learner left;
never from before the job's last start.

Two of the cases are known from memory alone, so an operator that has just started may call a
learner missing that restarts for a new template and has said nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.facts import STARTING_SECONDS_MAX
from atoll_operator.kube.names import LEARNER_ROLE, hosts_set
from atoll_operator.kube.objects import STARTING_WAITS
from atoll_operator.kube.observation import Pod, Remembered
from atoll_operator.kube.plan.rollout import OLD_TEMPLATE
from atoll_protos.names import split_slot

LEFT_ELSEWHERE_SECONDS = 60.0  # for which one that was told to end there may be rolled


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """What the decision about starting learners rests on."""

    job: str
    hosts: int = 1  # of a learner
    missing: Sequence[str]  # slots that are not in training
    shown: Mapping[str, pb.SlotStatus]  # as the registrar has them, by slot
    pods: Sequence[Pod]
    here: Collection[str]  # regions whose pods can be seen
    lost: Collection[str]  # names of nodes
    remembered: Remembered
    running_seconds: float  # since the job was started, resumed or retried
    now: float  # UNIX seconds


def starting(scene: Starts) -> tuple[str, ...]:
    """Slots of learners that start, in the order of `missing`."""
    pods: dict[str, list[Pod]] = {}
    for pod in scene.pods:
        if pod.role == LEARNER_ROLE and pod.region in scene.here:
            pods.setdefault(pod.slot, []).append(pod)
    return tuple(slot for slot in scene.missing if _starts(scene, slot, pods.get(slot, [])))


def _starts(scene: Starts, slot: str, pods: Sequence[Pod]) -> bool:
    present = [pod for pod in pods if not pod.terminating]
    if any(_is_troubled(pod, scene.lost) for pod in present):
        return False
    shown = scene.shown.get(slot)
    joining = shown is None or shown.state == pb.SLOT_JOINING
    if not joining and shown is not None and shown.uid in {pod.uid for pod in present}:
        return False  # this very pod has trained
    fresh = shown is None or (shown.state == pb.SLOT_JOINING and not shown.tokens_here)
    left_seconds = scene.remembered.left_seconds.get(slot)
    if left_seconds is not None and split_slot(slot)[0] not in scene.here:
        return min(left_seconds, scene.running_seconds) < LEFT_ELSEWHERE_SECONDS
    name = hosts_set(scene.job, slot)  # of its pod, or of the set of its hosts' pods
    names = {name} if scene.hosts == 1 else {f"{name}-{host}" for host in range(scene.hosts)}
    rolled = [
        seconds
        for (place, cause), seconds in scene.remembered.deleted_seconds.items()
        if place in names and cause.startswith(OLD_TEMPLATE) and seconds < STARTING_SECONDS_MAX
    ]
    if not (fresh or rolled or left_seconds is not None):
        return False
    made = [pod.made_at for pod in present if pod.made_at is not None]
    if made:
        return scene.now - max(made) < STARTING_SECONDS_MAX
    ages = (scene.running_seconds, left_seconds, scene.remembered.wanted_seconds.get(slot))
    return bool(rolled) or min(age for age in ages if age is not None) < STARTING_SECONDS_MAX


def _is_troubled(pod: Pod, lost: Collection[str]) -> bool:
    """Whether something has gone wrong with a pod since it was made."""
    failed = pod.ended or pod.restarts > 0 or pod.exit_code is not None
    stuck = bool(pod.unschedulable or pod.held_up) or pod.waiting not in STARTING_WAITS
    return failed or stuck or pod.node in lost
