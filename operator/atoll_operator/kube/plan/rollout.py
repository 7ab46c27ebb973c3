"""How a new pod template reaches running pods: learners region by region, shards one at a time.

StatefulSets of learners have the update strategy OnDelete, so a changed template alone restarts
no pod. The operator deletes old pods itself, and so decides the pace.

Learners (`next_to_restart`). Regions are rolled in the manifest's order. Of the first region that
still has old pods, those that do not train are deleted at once, because they cost nothing; of
those that train as many as the quorum can spare. The next region is begun only when every learner
of the earlier ones trains again. If the quorum asks for every learner, one pod may go at a time:
otherwise such a job could never change its template.

    region 1: old, training ── spare learners only ──> deleted ──> new, not training ──> training
    region 2: waits until all of region 1 is new and trains

What "trains" means matters (`counted`): the syncer shows a deleted pod's session as training for
a few seconds more. Counting it would let the next pass delete another pod and break the quorum.
So a slot of a region that this install serves counts only while its own pod, by UID, exists and
is not terminating. Slots of other clusters' regions are taken as the syncer shows them.

Nothing is rolled unless the job runs and the registrar answers, and pods on lost nodes and pods
beyond the wanted number of learners are left out.

Shards (`shards_to_hold`). A shard is a Deployment with the strategy Recreate, so applying a new
template restarts it. The operator therefore holds the new template back from all but the first
changed shard, and from that one too while any shard is not ready. A shard whose pod is being
replaced for a lost node is never held, because its new template is what moves it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observation import Pod, Workload
from atoll_protos.names import split_slot


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


def next_to_restart(
    regions: Sequence[str],
    pods: Sequence[Pod],
    wanted: Mapping[str, str],
    training: Collection[str],
    quorum: int,
) -> tuple[Pod, ...]:
    """Pods of the first region that still has old ones, as many as the quorum can spare.

    `wanted` is the hash of each region's template, `training` the slots that count as training.
    """
    spare = max(0, len(training) - quorum)
    if quorum >= len(training) and len(training) == len(pods):
        spare = 1  # else a job whose quorum is all learners could never change
    for region in regions:
        own = [pod for pod in pods if pod.region == region]
        old = [pod for pod in own if pod.template != wanted.get(region) and not pod.terminating]
        if not old:
            if any(pod.slot not in training for pod in own):
                return ()
            continue
        idle = [pod for pod in old if pod.slot not in training]
        busy = [pod for pod in old if pod.slot in training]
        return (*idle, *busy[:spare])
    return ()


def shards_to_hold(shards: Sequence[tuple[Workload | None, str]], ready: int) -> frozenset[str]:
    """Names of Deployments whose new template must wait: one shard restarts at a time.

    `shards` holds, by shard, the live Deployment and the hash of the template that it is to get;
    `ready` is the number of shards' pods that are Ready.
    """
    changed = [live.name for live, template in shards if live and live.template != template]
    if not changed:
        return frozenset()
    return frozenset(changed[1:] if ready == len(shards) else changed)
