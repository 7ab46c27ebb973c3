"""Which pods are made again elsewhere, and when the operator holds.

Kubernetes alone never replaces a StatefulSet's pod whose node has died: the pod stays Terminating
until the node returns, because only the node's kubelet could confirm that its process has ended.
Atoll may do better. Its registrar fences a slot: once SetOwner has been taken, no process of an
older pod can act for that slot. So a pod on a lost node may be deleted at once, and its
StatefulSet makes it again on another node.

Inputs. Two facts must agree before a pod is replaced, because each alone is often wrong:
- its *session is dead* at the syncer (`sessions.judge`): the registrar saw it leave or fall
  silent, or a shard does not answer. A cut between the learner and the syncer looks the same.
- its *node is lost* at the API server (`nodes`): the Node is NotReady, deleted, or its Lease is
  silent. A kubelet that was killed looks the same, while its pods train on.
When the syncer cannot be asked, which is always so for the evaluator, a pod's session counts as
dead only if its Node is deleted, is declared out-of-service, or has been NotReady for
nodeLossSeconds: a kubelet that restarts is NotReady for a moment. A silent Lease is not enough
then.

A learner of several hosts. Each host's pod is judged by its own node; its session is dead when the
learner's is, and for a host other than the head's also while the learner is Stalled (`sessions`).
Budgets go by learner: a slot has used as many replacements as that of its hosts which was replaced
most often (`counts`). So hosts that fail together, as with their rack, are one replacement, a
learner of many hosts does not run out sooner because it has more nodes to lose, and one host that
breaks node after node still comes to its end. Then none of the learner's pods is replaced: the
others could not train without it.

Storm. In a storm (`nodes.storm`) nothing of that region is replaced (`held`, condition
NodeLossHeld), and while it settles, for nodeLossSeconds after the last storm, any lost node still
holds, because nodes return one after the other. A node that is deleted or declared out-of-service
by a person is replaced even in a storm, and the annotation `atoll.dev/release-hold` on the job
lifts the hold.

State machine of a pod on a lost node (one arrow or more in each pass; see `repair` for the order):

    chosen (`decide`) ──> the template excludes the node (`exclusions`, applied)
      ──> the controller has observed that template ──> the Lease is still silent at the API server
      ──> the slot's owner is retired (SetOwner) ──> deleted, grace 0, with a UID precondition
      ──> made again elsewhere ──> named owner (SetOwner) ──> trains (`works_again`)

The exclusion comes before the delete because at 20 s the scheduler still takes the dead node for a
good one, and the pod's own requests have just been freed on it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atoll_operator.api.parts import Failure
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE
from atoll_operator.kube.observation import (
    Node,
    Pod,
    Replaced,
    Replacement,
    Workload,
    workload_name,
)
from atoll_operator.kube.plan.nodes import Census, NodeState, Storm, Tally, storm

DEAD_IN_WORDS = {
    LEARNER_ROLE: ", and no shard hears the learner",
    SHARD_ROLE: ", and the shard does not answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToReplace:
    """A pod to delete, so that its controller makes it again on another node."""

    pod: Pod
    node: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementInput:
    """What one decision rests on."""

    pods: Sequence[Pod]  # each with its region, shards and evaluators too
    nodes: Mapping[str, Node]
    dead: frozenset[str]  # UIDs of pods whose session or shard is dead
    unseen: frozenset[str]  # UIDs about which the syncer could not be asked
    counts: Mapping[str, int]  # replacements of the last day, by the learner's name
    failure: Failure
    region_nodes: Mapping[str, Sequence[Node]]
    released: bool
    settling: frozenset[str] = frozenset()  # regions with a storm within nodeLossSeconds


def decide(seen: PlacementInput) -> Placement:
    """Replace each pod whose session is dead and whose node is lost, unless a storm holds it."""
    seconds = seen.failure.node_loss_seconds
    census = seen.nodes if isinstance(seen.nodes, Census) else Census(seen.nodes)
    states = census.states(seconds)
    tallies = {region: census.tally(each, seconds) for region, each in seen.region_nodes.items()}
    lost = dict(census.lost(seconds))
    storms = _storms(seen, tallies, settling=True)
    replaced: list[ToReplace] = []
    exhausted: dict[str, None] = {}
    held: dict[str, Storm] = {}
    for pod in seen.pods:
        if not pod.node:
            continue
        state = states.get(pod.node, NodeState.GONE)
        if state is NodeState.GONE:
            lost[pod.node] = state
        if not _is_lost(pod, state, seen):
            continue
        node = seen.nodes.get(pod.node)
        if pod.region in storms and node is not None and not node.out_of_service:
            held[pod.region] = storms[pod.region]
        elif seen.counts.get(pod.learner, 0) >= seen.failure.max_replacements_per_slot:
            exhausted[pod.learner] = None
        else:
            reason = f"its node {pod.node} is {state}"
            if pod.uid in seen.dead:
                reason += _dead_in_words(pod)
            replaced.append(ToReplace(pod=pod, node=pod.node, reason=reason))
    return Placement(
        replace=tuple(replaced),
        held=tuple(held.values()),
        exhausted=tuple(exhausted),
        lost=lost,
        storms=tuple(_storms(seen, tallies, settling=False)),
    )


def _storms(
    seen: PlacementInput, tallies: Mapping[str, Tally], *, settling: bool
) -> dict[str, Storm]:
    """Storms by region; `settling`: with the regions that had one a moment ago."""
    found = {}
    for region, counted in tallies.items():
        lasts = settling and region in seen.settling
        one = storm(region, counted, seen.failure, released=seen.released, settling=lasts)
        if one is not None:
            found[region] = one
    return found


def _dead_in_words(pod: Pod) -> str:
    if pod.role == LEARNER_ROLE and not pod.is_head:
        return ", and its learner does not train"
    return DEAD_IN_WORDS.get(pod.role, "")


def _is_lost(pod: Pod, state: NodeState, seen: PlacementInput) -> bool:
    if not state.lost:
        return False
    if pod.uid in seen.dead:
        return True
    if pod.uid not in seen.unseen or state is NodeState.SILENT:
        return False
    node = seen.nodes.get(pod.node)
    if node is None or node.out_of_service:
        return True
    return node.not_ready_seconds >= seen.failure.node_loss_seconds


def region_nodes(
    regions: Iterable[str], nodes: Mapping[str, Node], *, spans_regions: bool
) -> dict[str, Sequence[Node]]:
    """Nodes by region: by their label where one cluster spans regions, else all of them."""
    census = nodes if isinstance(nodes, Census) else Census(nodes)
    if not spans_regions:
        return dict.fromkeys(regions, census.every())
    found = census.regions()
    return {region: found.get(region, ()) for region in regions}


def counts(
    job: str, pods: Iterable[Pod], workloads: Mapping[str, Workload], now: float
) -> dict[str, int]:
    """Replacements of the last day by learner's name; `now` is in UNIX seconds.

    Of several hosts it is the number of the one that was replaced most often. A replacement that
    is under way is already counted in the annotation (it is applied before the pod is deleted), so
    it is not counted against itself. Of a job that is suspended or over nothing is made again, so
    nothing is counted against the pods that it still has.
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
    """Whether the successor of a replaced pod trains or serves.

    `training` holds the UIDs of pods whose learner trains, perhaps without this one of its hosts.
    """
    if each.role == LEARNER_ROLE:
        new = [pod for pod in pods if pod.name == each.name and pod.uid != each.old_uid]
        return any(pod.uid in training and pod.ready for pod in new)
    new = [pod for pod in pods if (pod.role, pod.shard) == (each.role, each.shard)]
    return any(pod.ready and not pod.terminating and pod.uid != each.old_uid for pod in new)
