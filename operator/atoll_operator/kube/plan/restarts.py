"""Which pods of one job are deleted with their usual grace in this pass, and which wait.

None of a place, which is a learner's slot or a Deployment, is deleted twice for one cause within
SAME_CAUSE_SECONDS: what does not help the first time needs another answer. One that hangs is
restarted at most once a day, one in back-off once for each Secret. A template that has changed
again is another cause.

Learners' StatefulSets have the update strategy OnDelete: the operator deletes old pods itself.

    1. Old learners that cost nothing, of all regions, at once, since an edit is often the fix:
       those without a running container, and those that run but are known not to train.
    2. Old learners that train, or make a pause (Stalled): of the first region in the manifest's
       order that has some, as many as the quorum can spare, and one if it can spare none: otherwise
       such a job would keep its old template for ever. A region of which a StatefulSet is not
       observed yet may have some, so those after it wait. Of a job in several clusters each takes
       at most its own share (`children.share`); one that has none takes one while all train.

All old pods of a learner of several hosts go at once: hosts of two templates may train nothing.

Step 2 waits as long as a learner of the new template is on trial: made less than TRIAL_SECONDS ago
and not in training yet. After that it holds the others back only if that may be the template's
fault: its pods have nodes, and no learner of a new template trains anywhere. Step 2 also needs
every shard to serve, because one that is being restored may need the state of just this learner.

A deleted pod's session is shown as training for a few seconds more, so a slot that is served here
counts only while its own pod, by UID, exists and none of its learner's terminates (`counted`).

Applying a new template restarts a shard (Recreate). Ready ones are held back (`shards_to_hold`):
all but the first changed one, and that one too while any shard is not ready. One whose pod is being
replaced for a lost node is never held, because its new template is what moves it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status import job_status
from atoll_operator.api.status.conditions import PhaseKind
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE, Annotation
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import (
    BUSY_STATES,
    DAY_SECONDS,
    OLD_TEMPLATE,
    Object,
    Observation,
    Pod,
    by_workload,
    place_of,
    serves,
    workload_name,
)
from atoll_operator.kube.plan import actions, certificates, children, situation
from atoll_operator.kube.plan.actions import Deletion
from atoll_operator.kube.plan.phase import said_by
from atoll_operator.kube.plan.replacements import BACK_OFF, hung, keeps_off, stranded
from atoll_operator.kube.plan.situation import Situation
from atoll_protos.exits import ExitCode
from atoll_protos.names import Label, split_slot

TRIAL_SECONDS = 300.0  # in which a restarted pod should begin to train


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What one decision about learners rests on, beside the situation."""

    case: Situation
    learners: Mapping[str, Sequence[Pod]]  # that may be restarted, by slot
    wanted: Mapping[str, str]  # hash of the template by slot
    unobserved: frozenset[str]  # regions with a StatefulSet that its controller has yet to see
    training: frozenset[str]  # slots that count as training
    stalled: frozenset[str]  # those that make no step at present, or have yet to make one
    restarted_seconds: Mapping[str, float]  # since then, by pod's name

    def old(self, slot: str) -> list[Pod]:
        pods, wanted = self.learners[slot], self.wanted[slot]
        return [pod for pod in pods if not pod.terminating and pod.template != wanted]


def rollout_of(case: Situation) -> Rollout:
    """Which learners may be restarted, and what is known of them.

    Left out are StatefulSets that their controller has not observed (it would make the pod from the
    old template again), learners with a pod on a lost node (it is replaced, not restarted) and
    those beyond the wanted number. A host that is given up (`_is_given_up`) holds back none of the
    others: an edit may be what lets them go on without it.
    """
    seen, job, serves = case.seen, case.job, case.settings.serves
    own = [pod for pod in seen.pods if pod.role == LEARNER_ROLE and not _is_given_up(case, pod)]
    counts = {region.name: region.learners for region in job.spec.regions}
    live = {pod.slot: seen.workloads.get(workload_name(job.name, pod)) for pod in own}
    wanted = {slot: set_.template for slot, set_ in live.items() if set_ and set_.observed}
    lost = {pod.slot for pod in own if pod.node in case.placement.lost}
    learners: dict[str, list[Pod]] = {}
    for pod in own:
        if pod.slot in wanted and pod.slot not in lost and pod.ordinal < counts.get(pod.region, 0):
            learners.setdefault(pod.slot, []).append(pod)
    slots = seen.registrar.slots if seen.registrar is not None else []
    paused = [s for s in slots if s.state == pb.SLOT_STALLED or job_status.in_first_step(s)]
    return Rollout(
        case=case,
        learners=learners,
        wanted=wanted,
        unobserved=frozenset(p.region for p in own if (s := live[p.slot]) and not s.observed),
        training=counted(job_status.training(seen.replies) or [], own, serves),
        stalled=counted(paused, own, serves),
        restarted_seconds={
            place: seconds
            for (place, cause), seconds in seen.remembered.deleted_seconds.items()
            if cause.startswith(OLD_TEMPLATE)
        },
    )


def _is_given_up(case: Situation, pod: Pod) -> bool:
    """Whether a host other than host 0 is deleted, and is still there for its lost node alone.

    It may stay as long as that is away, where its learner has no replacements left, or where a
    finalizer (Kueue's) holds it. In a storm its process may well train on.
    """
    deleted = pod.terminating and not pod.is_head and pod.node in case.placement.lost
    return deleted and pod.region not in {storm.region for storm in case.placement.held}


def counted(
    slots: Sequence[pb.SlotStatus], pods: Sequence[Pod], serves: Callable[[str], bool]
) -> frozenset[str]:
    """Which of `slots`, all in training, stay so; `pods` are those of learners in this cluster."""
    leaving = {pod.slot for pod in pods if pod.terminating}
    here = {pod.slot: pod.uid for pod in pods if pod.is_head and pod.slot not in leaving}
    return frozenset(
        slot.slot
        for slot in slots
        if not serves(split_slot(slot.slot)[0]) or here.get(slot.slot) == slot.uid
    )


def next_to_restart(roll: Rollout) -> tuple[Pod, ...]:
    seen, spec = roll.case.seen, roll.case.job.spec
    old = {slot: found for slot in roll.learners if (found := roll.old(slot))}
    pods = [pod for found in roll.learners.values() for pod in found]
    idle = situation.idle(pods, seen.replies, seen.remembered.absent_seconds)
    free = [slot for slot in old if slot in idle or _costs_nothing(slot, roll)]
    if free or not situation.all_serve(seen.replies) or _on_trial(roll):
        return tuple(pod for slot in free for pod in old[slot])
    training, share = len(roll.training), children.share(roll.case.job, roll.case.settings.serves)
    if not share and training < spec.learners and spec.learners > spec.quorum:
        return ()  # what can be spared is other clusters', and may be taken
    spare = max(1, min(share, training - spec.quorum))
    for region in spec.regions:
        own = [slot for slot, found in old.items() if found[0].region == region.name]
        paused = [slot for slot in own if slot in roll.stalled]
        busy = [*paused, *(slot for slot in own if slot in roll.training)]
        if busy:
            return tuple(pod for slot in busy[:spare] for pod in old[slot])
        if region.name in roll.unobserved:
            return ()
    return ()


def _costs_nothing(slot: str, roll: Rollout) -> bool:
    """Whether a learner has too few running hosts to train: it loses nothing when they go."""
    running = [pod for pod in roll.learners[slot] if not pod.stands_still]
    few = len(running) < roll.case.job.spec.learner.hosts_needed and slot not in roll.training
    return few or not any(pod.is_head for pod in running)


def _on_trial(roll: Rollout) -> bool:
    """Whether a learner has yet to show that it trains with its new template.

    An old one that neither trains nor is known to be idle will be one or the other in a moment.
    """
    learners, wanted = roll.learners, roll.wanted
    new = {s for s, pods in learners.items() if all(p.template == wanted[s] for p in pods)}
    proven = bool(new & roll.training)
    for slot, pods in learners.items():
        if slot in roll.training or slot in roll.stalled:
            continue
        if slot not in new or any(_is_young(pod, roll) for pod in pods):
            return True
        if all(pod.node for pod in pods) and not proven:
            return True
    here = {pod.name for pods in learners.values() for pod in pods}
    return any(
        seconds < TRIAL_SECONDS and name not in here
        for name, seconds in roll.restarted_seconds.items()
    )


def _is_young(pod: Pod, roll: Rollout) -> bool:
    restarted = roll.restarted_seconds.get(pod.name, TRIAL_SECONDS) < TRIAL_SECONDS
    young = pod.made_at is None or roll.case.now - pod.made_at < TRIAL_SECONDS
    return pod.terminating or restarted or young


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardProcess:
    """A Deployment of a shard, and whether a new template waits for it."""

    name: str
    serves: bool
    changed: bool


def shards_to_hold(processes: Sequence[ShardProcess], *, restorable: bool = True) -> frozenset[str]:
    """Deployments whose new template must wait. `restorable`: a shard that restarts loses nothing.

    What serves takes it one at a time, while everything else serves.
    """
    serving = [process.name for process in processes if process.changed and process.serves]
    one_may = restorable and all(process.serves for process in processes)
    return frozenset(serving[1:] if one_may else serving)


SAME_CAUSE_SECONDS = 60.0  # no pod of one place is deleted twice for one cause within them
SHOWN_SECONDS = 120.0  # within which a kubelet shows a pod's next container a Secret that changed
SUPERSEDED = "a shard refused it for good: another pod has its slot"
RENEWED = "it is in back-off after an end with other credentials than there are now"
STRANDED = "it waits for a node, and excludes one that its template allows again"
CRASHING = "it has crashed {} times on {} while other learners train"
BROKEN = "a GPU of {} is broken"
HUNG = "it has made no step for very long while other learners train"


def deletions(case: Situation) -> tuple[Deletion, ...]:
    """Pods that cannot go on as they are; their controllers make them again."""
    seen, name = case.seen, case.job.name
    found = []
    for pod in seen.pods:
        live = seen.workloads.get(workload_name(name, pod))
        if stranded(pod, live):
            found.append(_of_pod(case, pod, STRANDED))
        elif _is_superseded(case, pod):
            found.append(_of_pod(case, pod, SUPERSEDED))
        elif (renewed := _with_new_credentials(case, pod)) is not None:
            found.append(renewed)
    for pod in case.placement.suspected:
        if keeps_off(pod.node, seen.workloads.get(workload_name(name, pod))):
            cause = f"it crashes on {pod.node}"
            found.append(_of_pod(case, pod, _why_suspected(case, pod), cause, told=True))
    if case.phase.kind is PhaseKind.RUNNING:
        for pod in hung(seen.pods, seen.registrar, seen.remembered.stalled_seconds):
            each = _of_pod(case, pod, HUNG, told=pod.is_head)
            if each.key is None or not is_done(case, each.key, DAY_SECONDS):
                found.append(each)
    return _not_again(case, found)


def _why_suspected(case: Situation, pod: Pod) -> str:
    if pod.exit_code == ExitCode.BAD_DEVICE:
        return BROKEN.format(pod.node) + said_by(pod)
    crashes = case.seen.remembered.crashes.get(pod.uid, pod.restarts)
    return CRASHING.format(crashes, pod.node)


def _is_superseded(case: Situation, pod: Pod) -> bool:
    """Whether a learner was ended for good; a shard's process that was waits for its next turn."""
    if pod.exit_code != ExitCode.SUPERSEDED or pod.role == SHARD_ROLE or pod.terminating:
        return False
    return not (pod.runs and (case.joined is None or pod.uid in case.joined))


def _with_new_credentials(case: Situation, pod: Pod) -> Deletion | None:
    """Of a pod in back-off that has not seen its new Secret: the kubelet may wait for 5 minutes."""
    if pod.terminating or (pod.waiting, pod.exit_code) != (BACK_OFF, ExitCode.TRY_AGAIN):
        return None
    if case.seen.certificates is None or pod.began_at is None:
        return None
    region = pod.region or case.job.spec.syncer_region
    name = certificates.secret_of(case.job, pod.role, region, home=case.home)
    secret = case.seen.certificates.of(name)
    if secret.reason or pod.began_at > secret.written_at + SHOWN_SECONDS:
        return None
    key = (place_of(case.job.name, pod), f"{RENEWED} {secret.version}")
    return None if is_done(case, key, DAY_SECONDS) else _of_pod(case, pod, RENEWED, key[1])


def of_templates(case: Situation) -> tuple[Deletion, ...]:
    if case.phase.kind is not PhaseKind.RUNNING:
        return ()
    roll = rollout_of(case)
    found = [
        _of_pod(case, pod, OLD_TEMPLATE, f"{OLD_TEMPLATE} {roll.wanted[pod.slot]}")
        for pod in next_to_restart(roll)
    ]
    return _not_again(case, found)


def _of_pod(
    case: Situation, pod: Pod, reason: str, cause: str = "", *, told: bool = False
) -> Deletion:
    key = (place_of(case.job.name, pod), cause or reason)
    event = None
    if told:
        message = f"{pod.name} is made again: {reason}"
        event = actions.warning(
            case.seen.raw, actions.LEARNER_RESTARTED, pod.name, message, rfc3339(case.now)
        )
    return Deletion(kind="Pod", name=pod.name, uid=pod.uid, reason=reason, key=key, event=event)


def _not_again(case: Situation, found: Sequence[Deletion]) -> tuple[Deletion, ...]:
    return tuple(
        deletion for deletion in found if deletion.key is None or not is_done(case, deletion.key)
    )


def is_done(case: Situation, key: tuple[str, str], seconds: float = SAME_CAUSE_SECONDS) -> bool:
    return case.seen.remembered.deleted_seconds.get(key, seconds) < seconds


def held_shards(case: Situation, objects: Sequence[Object]) -> frozenset[str]:
    """Names of shards' children whose change must wait; never of a shard on a lost node."""
    seen = case.seen
    kind, restorable = case.phase.kind, _is_restorable(case)
    if kind is PhaseKind.SUSPENDED and restorable:
        return frozenset()  # they are scaled to nothing
    if kind not in (PhaseKind.RUNNING, PhaseKind.SUSPENDED, PhaseKind.FINISHING):
        return frozenset()
    lost = {workload_name(case.job.name, replacement.pod) for replacement in case.placement.replace}
    return shards_to_hold(_processes(seen, objects), restorable=restorable) - lost


def _processes(seen: Observation, objects: Sequence[Object]) -> list[ShardProcess]:
    assert seen.job is not None
    pods, found = by_workload(seen.job.name, seen.pods), []
    for obj in objects:
        name, labels = obj["metadata"]["name"], obj["metadata"]["labels"]
        if obj["kind"] != "Deployment" or Label.SHARD not in labels:
            continue
        live = seen.workloads.get(name)
        wanted = obj["spec"]["template"]["metadata"]["annotations"][Annotation.TEMPLATE]
        found.append(
            ShardProcess(
                name=name,
                serves=any(map(serves, pods.get(name, ()))),
                changed=live is not None and live.hash != wanted,
            )
        )
    return found


def _is_restorable(case: Situation) -> bool:
    """Whether a restarted shard gets its state back; while finishing only shards know the end."""
    seen = case.seen
    if case.phase.kind is PhaseKind.FINISHING:
        return False
    if case.job.spec.syncer.storage.outlives_pods or not has_run(seen):
        return True
    if seen.registrar is None:
        return any(pod.is_head and pod.ready for pod in seen.pods)
    return any(slot.state in BUSY_STATES for slot in seen.registrar.slots)


def has_run(seen: Observation) -> bool:
    """Whether the job has begun to train: there is something to lose."""
    held = (reply is not None and bool(reply.run) for reply in seen.replies)
    return bool(seen.status.run) or any(held)
