"""A new pod template reaches the learners region by region, keeping the quorum; pure."""

from collections.abc import Callable, Collection, Mapping, Sequence

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.observe import Pod, Workload
from atoll_protos.names import split_slot


def counted(
    slots: Sequence[pb.SlotStatus], pods: Sequence[Pod], serves: Callable[[str], bool]
) -> frozenset[str]:
    """Slots in training that will stay so: the syncer sees a deleted pod train on for a while.

    Of a region that is served here, the slot's own pod must be there and not be terminating.
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

    `wanted` is each region's template hash, `training` the slots that train. A pod that does not
    train costs nothing. The next region waits until this one's learners train again.
    """
    spare = max(0, len(training) - quorum)
    if quorum >= len(training) and len(training) == len(pods):
        spare = 1  # else a job that asks for every learner could never change
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
    """Names of Deployments whose new template must wait: one shard restarts at a time."""
    changed = [live.name for live, template in shards if live and live.template != template]
    if not changed:
        return frozenset()
    return frozenset(changed[1:] if ready == len(shards) else changed)
