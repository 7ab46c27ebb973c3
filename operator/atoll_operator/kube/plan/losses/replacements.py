"""Which pods are made again elsewhere, and when the operator holds (docs/operating.md, Lost nodes).

Two facts must agree before a pod is replaced, because each alone is often wrong: its *session is
dead* at the syncer (`sessions.judge`), and its *node is lost* at the API server (`nodes`). When the
syncer cannot be asked, a silent Lease is not enough.

Of a learner of several hosts each pod is judged by its own node. Budgets go by learner (`counts`).

In a storm (`nodes.storm`) nothing of that region is replaced, and while it settles, for
nodeLossSeconds, any lost node still holds, because nodes return one after the other.

    chosen (`placement_of`) ──> the template excludes the node (`exclusions`, applied)
      ──> the controller has observed that template ──> the Lease is still silent at the API server
      ──> the slot's owner is retired (SetOwner) ──> deleted, grace 0, with a UID precondition
      ──> made again elsewhere ──> named owner (SetOwner) ──> trains (`works_again`)
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from atoll_operator.api.job.smaller_fields import FailureSpec
from atoll_operator.api.job.spec import Job
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE, Annotation
from atoll_operator.kube.observed.observation import (
    Node,
    Observation,
    Pod,
    Replaced,
    Replacement,
    Workload,
    with_region,
    workload_name,
)
from atoll_operator.kube.plan.losses.nodes import NodeState, Storm, Tally, states_of, storm
from atoll_operator.kube.plan.losses.sessions import Sessions
from atoll_operator.kube.plan.shard_processes import is_spare

DEAD_IN_WORDS = {
    LEARNER_ROLE: ", and no shard hears the learner",
    SHARD_ROLE: ", and the shard does not answer",
}
SPARE = ", and another pod serves the shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToReplace:
    """A pod to delete, so that its controller makes it again on another node."""

    pod: Pod
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is to be done about lost nodes."""

    replace: tuple[ToReplace, ...] = ()
    held: tuple[Storm, ...] = ()  # storms that keep a pod from being replaced
    exhausted: tuple[str, ...] = ()  # names of learners without replacements left
    lost: Mapping[str, NodeState] = field(default_factory=dict)  # by node
    storms: tuple[str, ...] = ()  # regions with too many lost nodes right now
    suspected: tuple[Pod, ...] = ()  # learners that crash where they are (`suspects`)


def placement_of(
    seen: Observation,
    job: Job,
    judged: Sessions,
    counts: Mapping[str, int],
    *,
    spans_regions: bool,
) -> Placement:
    """Replace each pod whose session is dead and whose node is lost, unless a storm holds it.

    `counts`: replacements of the last day, by the learner's name. `spans_regions`: the label of a
    node tells its region, else all are of each.
    """
    failure, nodes = job.spec.failure, seen.nodes or {}
    seconds = failure.node_loss_seconds
    of_nodes = states_of(nodes, seconds)
    states, lost = of_nodes.states, dict(of_nodes.lost)
    tallies = {
        each.name: of_nodes.tally(each.name, spans_regions=spans_regions)
        for each in job.spec.regions
    }
    released = Annotation.RELEASE_HOLD in (seen.raw["metadata"].get("annotations") or {})
    ages = seen.remembered.storm_seconds
    settling = {region for region, since in ages.items() if since < seconds}
    storms = _storms(tallies, failure, settling, released=released)
    replaced: list[ToReplace] = []
    exhausted: dict[str, None] = {}
    held: dict[str, Storm] = {}
    for bare in seen.pods:
        if not bare.node or (bare.ended and bare.role != LEARNER_ROLE):
            continue  # the ended pod of a learner counts: a StatefulSet waits for its name
        pod = with_region(bare, job.spec.syncer_region)
        state = states.get(pod.node, NodeState.GONE)
        if state is NodeState.GONE:
            lost[pod.node] = state
        node = nodes.get(pod.node)
        if not _is_lost(pod, state, node, judged, seconds):
            continue
        if pod.region in storms and node is not None and not node.out_of_service:
            held[pod.region] = storms[pod.region]
        elif counts.get(pod.learner, 0) >= failure.max_replacements_per_slot:
            exhausted[pod.learner] = None
        else:
            reason = f"its node {pod.node} is {state}"
            if pod.uid in judged.dead:
                reason += SPARE if is_spare(pod, seen.pods) else _dead_in_words(pod)
            replaced.append(ToReplace(pod=pod, reason=reason))
    return Placement(
        replace=tuple(replaced),
        held=tuple(held.values()),
        exhausted=tuple(exhausted),
        lost=lost,
        storms=tuple(_storms(tallies, failure, (), released=released)),
    )


def _storms(
    tallies: Mapping[str, Tally], failure: FailureSpec, settling: Collection[str], *, released: bool
) -> dict[str, Storm]:
    found = {
        region: storm(region, counted, failure, released=released, settling=region in settling)
        for region, counted in tallies.items()
    }
    return {region: each for region, each in found.items() if each is not None}


def _dead_in_words(pod: Pod) -> str:
    if pod.role == LEARNER_ROLE and not pod.is_head:
        return ", and its learner does not train"
    return DEAD_IN_WORDS.get(pod.role, "")


def _is_lost(
    pod: Pod, state: NodeState, node: Node | None, judged: Sessions, loss_seconds: float
) -> bool:
    if not state.lost:
        return False
    if pod.uid in judged.dead:
        return True
    if pod.uid not in judged.unseen or state is NodeState.SILENT:
        return False
    if node is None or node.out_of_service:
        return True
    return node.not_ready_seconds >= loss_seconds


def counts(
    job: str, pods: Iterable[Pod], workloads: Mapping[str, Workload], now: float
) -> dict[str, int]:
    """Replacements of the last day by learner's name; `now` is in UNIX seconds.

    Of several hosts that of the one replaced most often counts. A replacement that is under way is
    already in the annotation, and not counted against itself. Of a job that is suspended or over
    nothing is made again, so nothing is counted against the pods that it still has.
    """
    found: dict[str, int] = {}
    for pod in pods:
        live = workloads.get(workload_name(job, pod))
        if live is None or not live.replicas or pod.role != LEARNER_ROLE:
            continue
        noted = live.replaced.get(pod.index, Replaced())
        own = noted.within_a_day(now) - (noted.uid == pod.uid)
        found[pod.learner] = max(own, found.get(pod.learner, 0))
    return found


def works_again(each: Replacement, pods: Iterable[Pod], training: frozenset[str]) -> bool:
    """Whether the successor of a replaced pod serves, or is of a learner in `training` (UIDs)."""
    if each.role == LEARNER_ROLE:
        new = [pod for pod in pods if pod.name == each.name and pod.uid != each.old_uid]
        return any(pod.uid in training and pod.ready for pod in new)
    new = [pod for pod in pods if (pod.role, pod.shard) == (each.role, each.shard)]
    return any(pod.ready and not pod.terminating and pod.uid != each.old_uid for pod in new)
