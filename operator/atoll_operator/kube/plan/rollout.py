"""How a new pod template reaches running pods: at once where nothing is lost, else a few at a time.

StatefulSets of learners have the update strategy OnDelete, so a changed template alone restarts
no pod. The operator deletes old pods itself, and so decides the pace.

Learners (`next_to_restart`). An edit is often the fix of what does not run, so it reaches that
first:

    1. Old pods that cost nothing, of all regions, at once: those without a running container
       (waiting, crashing, pending), and those that run but are known not to train.
    2. Old pods that train, or make a pause (Stalled): of the first region in the manifest's order
       that has some, as many as the quorum can spare. If it can spare none, because it asks for
       every learner or because the others have no capacity, one goes at a time: what is lost is a
       round's work and the time of a restart, and otherwise such a job would keep its old template
       for ever.

Step 2 waits as long as a pod of the new template is on trial: made less than TRIAL_SECONDS ago and
not in training yet. So the quorum is left only when nothing else can come to its help. After that
time a pod that still does not train holds the others back only if it may be the template's fault:
it has a node, and no pod of a new template trains anywhere. So a template that does not work stops
at the pods that the quorum can spare, while a region without capacity stops nobody else.

Step 2 needs the syncer: every shard must serve, because a shard that is being restored may need
the state of just this learner. For the same reason a running pod counts as idle only when the
shards serve and the registrar has had time to see it (`Roll.idle`). When the registrar does not
answer, only pods without a running container go.

What "trains" means matters (`counted`): the syncer shows a deleted pod's session as training for
a few seconds more. Counting it would let the next pass delete another pod and break the quorum.
So a slot of a region that this install serves counts only while its own pod, by UID, exists and
is not terminating. Slots of other clusters' regions are taken as the syncer shows them.

Nothing is rolled unless the job runs, and pods on lost nodes and pods beyond the wanted number of
learners are left out.

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

TRIAL_SECONDS = 300.0  # in which a restarted pod should begin to train


def counted(
    slots: Sequence[pb.SlotStatus], pods: Sequence[Pod], serves: Callable[[str], bool]
) -> frozenset[str]:
    """Names of the slots in training that will stay so.

    `slots` are those that the registrar shows in training, `pods` those of learners in this
    cluster, `serves` says whether this install runs a region.
    """
    here = {pod.slot: pod.uid for pod in pods if not pod.terminating}
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
    wanted: Mapping[str, str]  # hash of the template by region
    training: frozenset[str]  # slots that count as training
    stalled: frozenset[str] = frozenset()  # those that have trained and make no step at present
    idle: frozenset[str] = frozenset()  # slots that are known not to train
    serving: bool = True  # every shard answers and serves
    quorum: int
    restarted_seconds: Mapping[str, float] = field(default_factory=dict)  # since, by pod's name
    now: float = 0.0  # UNIX seconds


def next_to_restart(roll: Roll) -> tuple[Pod, ...]:
    """Old pods that may be deleted now."""
    old = [
        pod for pod in roll.pods if not pod.terminating and pod.template != roll.wanted[pod.region]
    ]
    free = tuple(pod for pod in old if pod.stands_still or pod.slot in roll.idle)
    if free or not roll.serving or _on_trial(roll):
        return free
    spare = max(1, len(roll.training) - roll.quorum)
    for region in roll.regions:
        own = [pod for pod in old if pod.region == region]
        paused = [pod for pod in own if pod.slot in roll.stalled]
        busy = [*paused, *(pod for pod in own if pod.slot in roll.training)]
        if busy:
            return tuple(busy[:spare])
    return ()


def _on_trial(roll: Roll) -> bool:
    """Whether a pod has yet to show that it trains with its new template.

    An old one that neither trains nor is known to be idle will be one or the other in a moment.
    """
    new = [pod for pod in roll.pods if pod.template == roll.wanted[pod.region]]
    proven = any(pod.slot in roll.training for pod in new)
    for pod in roll.pods:
        if pod.slot in roll.training or pod.slot in roll.stalled:
            continue
        restarted = roll.restarted_seconds.get(pod.name, TRIAL_SECONDS) < TRIAL_SECONDS
        young = pod.made_at is None or roll.now - pod.made_at < TRIAL_SECONDS
        if pod.terminating or restarted or pod not in new or young:
            return True
        if pod.node and not proven:
            return True
    here = {pod.name for pod in roll.pods}
    return any(
        seconds < TRIAL_SECONDS and name not in here
        for name, seconds in roll.restarted_seconds.items()
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
