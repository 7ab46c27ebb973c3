"""Learners that are not in training because they start, for the first time or as they were told.

docs/conditions.md (Learners that start) has the cases. Each lasts at most STARTING_SECONDS_MAX, as
long as nothing is wrong with the pod. That a new template has ended a pod, and that a learner was
terminated in an orderly way (Leave), is known from memory alone. After a resume the shards may know
of no slot, as if it had never trained.

The time counts from the making of the present pod. Where there is none it counts from the moment at
which the job began to ask for the slot, or at which its learner left; never from before the job's
last start.
"""

from collections.abc import Collection, Sequence

from atoll_operator.api.status import seen_status
from atoll_operator.api.status.condition_facts import STARTING_SECONDS_MAX
from atoll_operator.kube.names import LEARNER_ROLE, hosts_set
from atoll_operator.kube.observed.objects import STARTING_WAITS
from atoll_operator.kube.observed.observation import OLD_TEMPLATE, Pod
from atoll_operator.kube.plan.situation import Situation
from atoll_protos.names import split_slot

LEFT_ELSEWHERE_SECONDS = 60.0  # for which one that was told to end there may be rolled


def starting(case: Situation) -> tuple[str, ...]:
    """Slots of learners that are not in training because they start, in the manifest's order."""
    pods: dict[str, list[Pod]] = {}
    for pod in case.seen.pods:
        if pod.role == LEARNER_ROLE and case.settings.serves(pod.region):
            pods.setdefault(pod.slot, []).append(pod)
    missing = seen_status.missing(case.job, case.seen.replies)
    return tuple(slot for slot in missing if _starts(case, slot, pods.get(slot, [])))


def _starts(case: Situation, slot: str, pods: Sequence[Pod]) -> bool:
    remembered, running_seconds = case.seen.remembered, case.before.running_seconds or 0.0
    present = [pod for pod in pods if not pod.terminating]
    if any(_is_troubled(pod, case.placement.lost) for pod in present):
        return False
    slots = case.seen.registrar.slots if case.seen.registrar is not None else ()
    shown = next((each for each in slots if each.slot == slot), None)
    joining = shown is None or seen_status.starts(shown)
    if not joining and shown is not None and shown.uid in {pod.uid for pod in present}:
        return False  # this very pod has trained
    fresh = shown is None or (joining and not shown.tokens_here)
    left_seconds = remembered.left_seconds.get(slot)
    if left_seconds is not None and not case.settings.serves(split_slot(slot)[0]):
        return min(left_seconds, running_seconds) < LEFT_ELSEWHERE_SECONDS
    name = hosts_set(case.job.name, slot)  # of its pod, or of the set of its hosts' pods
    hosts = case.job.spec.learner.hosts
    names = {name} if hosts == 1 else {f"{name}-{host}" for host in range(hosts)}
    rolled = [
        seconds
        for (place, cause), seconds in remembered.deleted_seconds.items()
        if place in names and cause.startswith(OLD_TEMPLATE) and seconds < STARTING_SECONDS_MAX
    ]
    if not (fresh or rolled or left_seconds is not None):
        return False
    made = [pod.made_at for pod in present if pod.made_at is not None]
    if made:
        return case.now - max(made) < STARTING_SECONDS_MAX
    ages = (running_seconds, left_seconds, remembered.wanted_seconds.get(slot))
    return bool(rolled) or min(age for age in ages if age is not None) < STARTING_SECONDS_MAX


def _is_troubled(pod: Pod, lost: Collection[str]) -> bool:
    failed = pod.ended or pod.restarts > 0 or pod.exit_code is not None
    stuck = bool(pod.unschedulable or pod.held_up) or pod.waiting not in STARTING_WAITS
    return failed or stuck or pod.node in lost
