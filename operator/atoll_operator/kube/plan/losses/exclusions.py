"""The nodes that templates exclude: lost ones, and ones on which a learner crashes.

After 20 s the scheduler still takes a dead node for a good one, and a node with a broken GPU is
Ready. So before a pod is deleted its workload excludes the node, and the delete waits until the
controller has seen that (`is_excluded`). A lost node is excluded from the first replacement on
until it is well again, a suspected one for SUSPECT_SECONDS, which an annotation of the StatefulSet
remembers.

Kueue refuses a change of the affinity of a workload that it has admitted, so what it queues
(`queued`) excludes no other node: the delete waits until the Node is NotReady. Kueue also keeps a
finalizer on a pod until it has ended, and looks at it only when the StatefulSet changes, so the set
gets the UIDs of such pods as an annotation (`ended`; see KUEUE_MAY_END in `pods`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atoll_operator.kube.observed import notes
from atoll_operator.kube.observed.observation import (
    Pod,
    Replaced,
    Workload,
    by_workload,
    workload_name,
)
from atoll_operator.kube.plan.losses.nodes import NodeState
from atoll_operator.kube.plan.losses.replacements import Placement, ToReplace
from atoll_operator.kube.plan.shard_processes import waits_beside_the_other

SUSPECT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusions:
    """What nodes change in the workloads, by a workload's name."""

    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)  # text of Annotation.REPLACED
    suspects: Mapping[str, str] = field(default_factory=dict)  # text of Annotation.SUSPECTS
    ended: Mapping[str, str] = field(default_factory=dict)  # text of Annotation.ENDED


def exclusions(
    job: str,
    workloads: Mapping[str, Workload],
    placement: Placement,
    pods: Sequence[Pod],
    *,
    now: float,
    known: bool = True,
) -> Exclusions:
    """What every workload excludes; `now` is in UNIX seconds.

    `known`: the nodes have been listed; before that everything stays as it is. A Deployment keeps
    what it has as long as its pod is on a node that is not lost, because a changed template
    restarts the shard. One that only waits beside the process that serves costs nothing: it moves
    once the lost node is well. Nothing can be scheduled on a deleted node: it is not excluded.
    """
    stand = {
        workload_name(job, pod)
        for pod in pods
        if pod.node and not pod.ended and not waits_beside_the_other(pod, pods)
    }
    lost = {n for n, state in placement.lost.items() if state is not NodeState.GONE}
    moved, suspected = (
        by_workload(job, found)
        for found in ([each.pod for each in placement.replace], placement.suspected)
    )
    excluded: dict[str, tuple[str, ...]] = {}
    replaced: dict[str, str] = {}
    suspects: dict[str, str] = {}
    ended: dict[str, str] = {}
    for name, live in workloads.items():
        suspicion = _suspicion(live, suspected.get(name, []), placement, now)
        kept = set(live.excluded)
        if known and (live.kind == "StatefulSet" or name not in stand):
            kept &= lost
        if name in moved:
            kept |= lost
        excluded[name] = live.excluded if live.queued else tuple(sorted(kept | suspicion.keys()))
        suspects[name] = notes.of_suspects(suspicion)
        noted = dict(live.replaced)
        for pod in (*moved.get(name, []), *suspected.get(name, [])) if live.replicas else ():
            before = noted.get(pod.index, Replaced())
            if before.uid != pod.uid:
                noted[pod.index] = before.once_more(pod.uid, now)
        replaced[name] = notes.of_replaced(noted)
        held = [p.uid for p in moved.get(name, ()) if live.queued and p.ended and p.terminating]
        ended[name] = ",".join(sorted(held))
    return Exclusions(nodes=excluded, replaced=replaced, suspects=suspects, ended=ended)


def _suspicion(
    live: Workload, suspected: Iterable[Pod], placement: Placement, now: float
) -> dict[str, int]:
    """Since when each node is suspected; without those whose time is over, or that are gone."""
    found = {
        node: since
        for node, since in live.suspects.items()
        if abs(now - since) < SUSPECT_SECONDS and placement.lost.get(node) is not NodeState.GONE
    }
    for pod in suspected:
        found.setdefault(pod.node, int(now))
    return found


def is_excluded(each: ToReplace, live: Workload | None, lost: Mapping[str, NodeState]) -> bool:
    """Whether the pod may be deleted: its controller would not use the lost node again."""
    state = lost.get(each.pod.node)
    if state is NodeState.GONE or (live and live.queued and state is NodeState.NOT_READY):
        return True
    return keeps_off(each.pod.node, live)


def keeps_off(node: str, live: Workload | None) -> bool:
    return live is not None and live.observed and node in live.excluded


def stranded(pod: Pod, live: Workload | None) -> bool:
    """Whether a StatefulSet's pod waits, and excludes a node that its template allows again."""
    if live is None or live.kind != "StatefulSet" or not live.observed:
        return False
    waits = not pod.node and not pod.terminating and not pod.ended
    return waits and any(node not in live.excluded for node in pod.excluded)
