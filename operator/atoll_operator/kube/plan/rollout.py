"""How a new pod template reaches running pods: at once where nothing is lost, else a few at a time.

StatefulSets of learners have the update strategy OnDelete, so a changed template alone restarts
no pod. The operator deletes old pods itself, and so decides the pace.

Learners (`next_to_restart`). An edit is often the fix of what does not run, so it reaches that
first:

    1. Old learners that cost nothing, of all regions, at once: those without a running container
       (waiting, crashing, pending), and those that run but are known not to train.
    2. Old learners that train, or make a pause (Stalled): of the first region in the manifest's
       order that has some, as many as the quorum can spare. If it can spare none, because it asks
       for every learner or because the others have no capacity, one goes at a time: what is lost is
       a round's work and the time of a restart, and otherwise such a job would keep its old
       template for ever. Of a job in several clusters each takes at most its own share
       (`budgets.share`); one that has none takes one while all learners of the job train.

Learners go, not pods. All old pods of a learner of several hosts go at once: hosts of two templates
may not agree and train nothing, and each pod that went alone would restart the whole learner. It
costs nothing where its head's pod does not run, or fewer of its hosts' pods than it needs
(`Roll.hosts_min`; one that trains with fewer has been started when it needed no more).

Step 2 waits as long as a learner of the new template is on trial: made less than TRIAL_SECONDS ago
and not in training yet. So the quorum is left only when nothing else can come to its help. After
that time a learner that still does not train holds the others back only if it may be the template's
fault: its pods have nodes, and no learner of a new template trains anywhere. So a template that
does not work stops at the learners that the quorum can spare, while a region without capacity stops
nobody else.

Step 2 needs the syncer: every shard must serve, because a shard that is being restored may need
the state of just this learner. For the same reason a running pod counts as idle only when the
shards serve and the registrar has had time to see it (`Roll.idle`). When the registrar does not
answer, only pods without a running container go.

What "trains" means matters (`counted`): the syncer shows a deleted pod's session as training for
a few seconds more. Counting it would let the next pass delete another pod and break the quorum.
So a slot of a region that this install serves counts only while its own pod, by UID, exists and
none of its learner's pods is terminating. Slots of other clusters' regions are taken as the syncer
shows them.

Nothing is rolled unless the job runs, and learners on lost nodes or beyond the wanted number are
left out.

Shards (`shards_to_hold`). A shard is a Deployment with the strategy Recreate, so applying a new
template restarts it. A shard that is not ready gets its new template at once. From those that are
ready the operator holds it back: from all but the first changed one, and from that one too while
any shard is not ready. A shard whose pod is being replaced for a lost node is never held, because
its new template is what moves it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observation import Pod, Workload
from atoll_protos.names import split_slot

OLD_TEMPLATE = "its template has changed"  # why a pod is deleted
TRIAL_SECONDS = 300.0  # in which a restarted pod should begin to train


def counted(
    slots: Sequence[pb.SlotStatus], pods: Sequence[Pod], serves: Callable[[str], bool]
) -> frozenset[str]:
    """Names of the slots in training that will stay so.

    `slots` are those that the registrar shows in training, `pods` those of learners in this
    cluster, `serves` says whether this install runs a region.
    """
    leaving = {pod.slot for pod in pods if pod.terminating}
    here = {pod.slot: pod.uid for pod in pods if pod.is_head and pod.slot not in leaving}
    return frozenset(
        each.slot
        for each in slots
        if not serves(split_slot(each.slot)[0]) or here.get(each.slot) == each.uid
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """What one decision about learners rests on."""

    regions: Sequence[str]  # in the manifest's order
    pods: Sequence[Pod]  # learners' pods that may be restarted
    wanted: Mapping[str, str]  # hash of the template by slot
    training: frozenset[str]  # slots that count as training
    stalled: frozenset[str] = frozenset()  # those that have trained and make no step at present
    idle: frozenset[str] = frozenset()  # slots that are known not to train
    serving: bool = True  # every shard answers and serves
    quorum: int
    share: int  # of the learners that the quorum can spare: how many are this cluster's
    desired: int  # learners of all regions
    hosts_min: int = 1  # without so many hosts a learner does not train
    restarted_seconds: Mapping[str, float] = field(default_factory=dict)  # since, by pod's name
    now: float = 0.0  # UNIX seconds


def next_to_restart(roll: Roll) -> tuple[Pod, ...]:
    """Old pods that may be deleted now."""
    learners = _learners(roll.pods)
    old = {slot: found for slot, pods in learners.items() if (found := _old(pods, roll))}
    free = [slot for slot in old if _costs_nothing(slot, learners[slot], roll)]
    if free or not roll.serving or _on_trial(roll, learners):
        return tuple(pod for slot in free for pod in old[slot])
    if not roll.share and len(roll.training) < roll.desired and roll.desired > roll.quorum:
        return ()  # what can be spared is other clusters', and may be taken
    spare = max(1, min(roll.share, len(roll.training) - roll.quorum))
    for region in roll.regions:
        own = [slot for slot, pods in old.items() if pods[0].region == region]
        paused = [slot for slot in own if slot in roll.stalled]
        busy = [*paused, *(slot for slot in own if slot in roll.training)]
        if busy:
            return tuple(pod for slot in busy[:spare] for pod in old[slot])
    return ()


def _learners(pods: Sequence[Pod]) -> dict[str, list[Pod]]:
    """Pods by slot."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        found.setdefault(pod.slot, []).append(pod)
    return found


def _old(pods: Sequence[Pod], roll: Roll) -> list[Pod]:
    """Those of one learner's pods that are to be made again."""
    return [p for p in pods if not p.terminating and p.template != roll.wanted[p.slot]]


def _costs_nothing(slot: str, pods: Sequence[Pod], roll: Roll) -> bool:
    """Whether a learner loses nothing when its old pods go."""
    running = [pod for pod in pods if not pod.stands_still]
    heads = any(pod.is_head for pod in running)
    too_few = len(running) < roll.hosts_min and slot not in roll.training
    return slot in roll.idle or not heads or too_few


def _on_trial(roll: Roll, learners: Mapping[str, Sequence[Pod]]) -> bool:
    """Whether a learner has yet to show that it trains with its new template.

    An old one that neither trains nor is known to be idle will be one or the other in a moment.
    """
    new = {s for s, pods in learners.items() if all(p.template == roll.wanted[s] for p in pods)}
    proven = bool(new & roll.training)
    for slot, pods in learners.items():
        if slot in roll.training or slot in roll.stalled:
            continue
        if slot not in new or any(_is_young(pod, roll) for pod in pods):
            return True
        if all(pod.node for pod in pods) and not proven:
            return True
    here = {pod.name for pod in roll.pods}
    return any(
        seconds < TRIAL_SECONDS and name not in here
        for name, seconds in roll.restarted_seconds.items()
    )


def _is_young(pod: Pod, roll: Roll) -> bool:
    """Whether a pod was made a moment ago, or is about to be made again."""
    restarted = roll.restarted_seconds.get(pod.name, TRIAL_SECONDS) < TRIAL_SECONDS
    return (
        pod.terminating
        or restarted
        or pod.made_at is None
        or roll.now - pod.made_at < TRIAL_SECONDS
    )


def shards_to_hold(
    shards: Sequence[tuple[Workload | None, str, bool]], *, restorable: bool = True
) -> frozenset[str]:
    """Names of Deployments whose new template must wait: one ready shard restarts at a time.

    `shards` holds, by shard, the live Deployment, the hash of the template that it is to get and
    whether its pod is ready. `restorable`: a shard that restarts now can get its state again.
    """
    changed = [
        live.name for live, template, ready in shards if ready and live and live.hash != template
    ]
    all_ready = all(ready for _, _, ready in shards)
    return frozenset(changed[1:] if all_ready and restorable else changed)
