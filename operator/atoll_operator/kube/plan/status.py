"""What the status of a job says after a pass, and whether that is worth a write.

What cannot be seen is Unknown or absent, never the last value. An answer older than
REPLY_SECONDS_MAX counts as none. The one exception is a job that is over: its pods and shards are
gone by intent, so the last counts stay.

Nothing new is not written. A change of a condition's status or reason, or of a count, is written at
once; after BUSY_WRITES writes within a minute once in BUSY_SECONDS. A message and mere progress are
written at most every WRITE_SECONDS.

A drain counts Ready pods, so the template of learners has a readiness gate, which this operator
writes (`marks`): a pod is marked as soon as its learner is Training, or Stalled, and not any more
when the registrar has shown something else for IDLE_SECONDS while every shard serves.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.fields import RegionPlacement, TlsMode
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status import conditions, job_status
from atoll_operator.api.status.conditions import (
    STARTING_SECONDS_MAX,
    Facts,
    PhaseKind,
    facts_of_replies,
)
from atoll_operator.api.status.job_status import ENDED, Condition, FailureRecord, Status
from atoll_operator.api.status.reasons import NODE_LOSS_HELD
from atoll_operator.kube.names import (
    LEARNER_ROLE,
    SHARD_PORT,
    SHARD_ROLE,
    hosts_set,
    learner_sets,
    shard_deployments,
)
from atoll_operator.kube.observed.objects import STARTING_WAITS, quantity, rfc3339
from atoll_operator.kube.observed.observation import (
    BUSY_STATES,
    KILLED,
    OLD_TEMPLATE,
    ChildRefusal,
    Object,
    Observation,
    Pod,
    Workload,
    is_followed,
    texts_of,
    with_hosts,
)
from atoll_operator.kube.plan import actions, children, situation
from atoll_operator.kube.plan import phase as phases
from atoll_operator.kube.plan.accepted import INVALID
from atoll_operator.kube.plan.actions import Mark, StatusWrite
from atoll_operator.kube.plan.phase import export_url, last_words, said_by
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.plan.situation import Situation, retry_of
from atoll_operator.sizing import needs
from atoll_protos.exits import RETURNED, ExitCode, is_failure
from atoll_protos.names import split_slot

ATTACHED: Final = "Multi-Attach error"
OFF: Final = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


class Problems(NamedTuple):
    """In sentences."""

    shards: list[str]
    learners: list[str]


def problems(
    pods: Sequence[Pod], placement: Placement, joined: frozenset[str] | None = None
) -> Problems:
    """Describe what is wrong with the pods, one sentence per pod.

    `joined` holds the UIDs of pods whose learner has a session (None: not known, or the job is
    final). It tells a learner that has come back from one that ended a moment ago.
    """
    shards: list[str] = []
    learners: list[str] = []
    lost = placement.lost
    for pod in pods:
        if pod.ended or is_followed(pod, pods):
            continue
        said, reason = "", f" ({pod.exit_reason})" if pod.exit_reason else ""
        where = f" on {pod.node}" if pod.exit_code == ExitCode.BAD_DEVICE else ""
        if pod.node in lost:
            said = f"{pod.name} is on {pod.node}, which is {lost[pod.node]}"
        elif pod.unschedulable:
            said = f"{pod.name} waits for a node: {pod.unschedulable}"
        elif pod.held_up:
            said = f"{pod.name} cannot start on {pod.node}: {pod.held_up}{_detaching(pod, lost)}"
        elif pod.waiting not in STARTING_WAITS:
            own = pod.exit_code is not None and "container " not in pod.waiting
            code = f", last exit code {pod.exit_code}{reason}" if own else ""
            words = said_by(pod) if own else ""
            words = words or (f": {pod.details}" if pod.details else "")
            said = f"{pod.name} waits{where}: {pod.waiting}{code}{words}"
        elif _comes_back(pod) and joined is not None and pod.uid not in joined:
            said = f"{pod.name} is started again{where}, last exit code {pod.exit_code}{reason}"
            said += said_by(pod)
        if said:
            (shards if pod.role == SHARD_ROLE else learners).append(said)
    learners += [
        f"{name} has used its spec.failure.maxReplacementsPerSlot of a day"
        for name in placement.exhausted
    ]
    return Problems(sorted(shards), sorted(learners))


def _detaching(pod: Pod, lost: Collection[str]) -> str:
    """Return what frees a disk attached to a lost node, which Kubernetes does after 6 minutes."""
    (node, *_) = (*(name for name in pod.excluded if name in lost), "")
    if not node or ATTACHED not in pod.held_up:
        return ""
    return f"; if {node} is off, and not only cut off: kubectl taint node {node} {OFF}"


def _comes_back(pod: Pod) -> bool:
    """Whether a learner's container runs again after an end that was no kill and not asked for."""
    if pod.role != LEARNER_ROLE or not pod.runs or pod.exit_code is None or pod.terminating:
        return False
    failed = is_failure(pod.exit_code) and pod.exit_code not in KILLED
    return failed or RETURNED in pod.exit_message


def unbound_claims(children: Iterable[Object]) -> list[str]:
    """Claims that no volume is bound to, one sentence per claim.

    A claim may wait for its pod and the pod for its claim, so this is said only beside a pod that
    cannot be scheduled: the scheduler's words do not name the claim or its storage class.
    """
    found = []
    for child in children:
        if child["kind"] != "PersistentVolumeClaim":
            continue
        if (child.get("status") or {}).get("phase") == "Pending":
            given = child["spec"].get("storageClassName")
            of_class = f" of the storage class {given}" if given else ""
            found.append(f"claim {child['metadata']['name']}{of_class} has no volume yet")
    return sorted(found)


def larger_claims(children: Iterable[Object], size: str) -> list[str]:
    """Claims that are larger than `spec.syncer.storage.size`, one sentence per claim."""
    found, asked = [], quantity(size)
    for child in children:
        if child["kind"] != "PersistentVolumeClaim":
            continue
        has = child.get("spec", {}).get("resources", {}).get("requests", {}).get("storage")
        given = quantity(has)
        if asked is not None and given is not None and given > asked:
            found.append(f"claim {child['metadata']['name']} keeps its {has}: no volume shrinks")
    return sorted(found)


WRITE_SECONDS = 10.0  # between two writes of mere progress
UNREACHABLE_SECONDS = 10.0  # of silence, after which a Ready pod's shard cannot be reached
BUSY_WRITES = 10  # within a minute: then even changes of conditions are written more seldom
BUSY_SECONDS = 5.0
LEFT_ELSEWHERE_SECONDS = 60.0  # for which one that was told to end there may be rolled


def of_rejected(seen: Observation, now: float) -> StatusWrite | None:
    """Write an unreadable manifest's status: what runs goes on unseen, what is over stays so."""
    old = seen.status
    begun = old.start_time is not None
    found = conditions.rejected(seen.reason or INVALID, seen.error, begun=begun)
    if phases.before(old, now).over:
        known = {condition.type: condition for condition in old.conditions or []}
        found = (found[0], *(known.get(each.type, each) for each in found[1:]))
    return _write(seen, found, old, now)


def of_unread(case: Situation) -> StatusWrite | None:
    """Write the status of a job whose objects cannot be read: its phase, all else Unknown."""
    facts = replace(_facts(case), unread=case.seen.unread)
    status = case.seen.status
    if not case.phase.kind.over:
        status = Status(run=_run(case)).model_copy(update=_lasts(case))
    return _write(case.seen, conditions.conditions_of(facts), status, case.now)


def of_job(case: Situation, refused: Sequence[ChildRefusal] = ()) -> StatusWrite | None:
    """None: nothing to write. `refused`: children that the API server has refused."""
    facts = replace(
        _facts(case),
        refused=(*texts_of(refused), *case.seen.remembered.undeleted),
        template_refused=any(refusal.of_template for refusal in refused),
    )
    found = conditions.conditions_of(facts)
    if case.phase.kind.over and case.before.over:
        # Pods and shards are gone: what was written while they were there stays.
        status = _with_last_reports(case)
    else:
        status = job_status.status_of(_view(case))
        kept = status.checkpoint or case.seen.status.checkpoint  # of use when all else is lost
        about = {"run": status.run or _run(case), "checkpoint": kept, **_lasts(case)}
        status = status.model_copy(update=about)
    place = export_url(case.job) if case.home else case.job.spec.export_url
    if case.phase.kind is PhaseKind.COMPLETE and place:
        status = status.model_copy(update={"export_url": place})
    return _write(case.seen, found, status, case.now)


def _with_last_reports(case: Situation) -> Status:
    """Add learners' last reports, which shards that stay give all clusters alike."""
    status = case.seen.status
    last, known = job_status.status_of(_view(case)).progress, status.progress
    if last is None or known is None or last.step < known.step or last.tokens <= known.tokens:
        return status
    kept = {"loss": known.loss, "metrics": last.metrics or known.metrics}
    return status.model_copy(update={"progress": last.model_copy(update=kept)})


def _view(case: Situation) -> job_status.SeenJob:
    seen, job = case.seen, case.job
    served = [region.name for region in job.spec.regions if case.settings.serves(region.name)]
    return job_status.SeenJob(
        job=job,
        replies=seen.replies,
        asked_at=seen.remembered.asked_at or rfc3339(case.now),
        ready=ready_by_region(seen.pods, served, job.spec.learner.hosts_needed),
        replaced=replaced_by_region(job, seen.workloads),
        endpoints=_endpoints(case) if case.home else None,
        idle=case.phase.kind is not PhaseKind.RUNNING and not seen.pods,
    )


def _endpoints(case: Situation) -> list[str] | None:
    job, syncer = case.job, case.seen.status.syncer
    home = job.spec.syncer_region
    any_node = any(
        r.name == home and r.placement is RegionPlacement.ANYWHERE for r in job.spec.regions
    )
    return children.endpoints(
        job,
        case.seen.children,
        case.seen.nodes,
        home if case.settings.spans_regions and not any_node else "",
        (syncer.endpoints if syncer else None) or (),
    )


def _lasts(case: Situation) -> dict[str, Any]:
    """startTime as of the last resume or retry, completionTime once, how a failed job stood."""
    found: dict[str, Any] = {}
    old, retried = case.seen.status, case.before.retried
    if case.phase.kind is not PhaseKind.SUSPENDED:
        found["start_time"] = (None if retried else old.start_time) or rfc3339(case.now)
    if case.phase.kind.over:
        found["completion_time"] = (None if retried else old.completion_time) or rfc3339(case.now)
    if case.phase.kind is PhaseKind.FAILED:
        generation = case.seen.raw["metadata"]["generation"]
        found["failure"] = FailureRecord(generation=generation, retry=retry_of(case.seen))
    return found


def _run(case: Situation) -> str | None:
    """Return the run written before; a retried job whose shards kept nothing begins another."""
    kept = case.job.spec.syncer.storage.outlives_pods
    return None if case.before.retried and not kept else case.seen.status.run


def _facts(case: Situation) -> Facts:
    seen, job, placement = case.seen, case.job, case.placement
    live = job_status.listed(job, seen.replies)
    gone = {pod.uid for pod in case.exited}
    left = [pod for pod in seen.pods if pod.uid not in gone]
    ended = all(reply is not None and reply.state in ENDED for reply in seen.replies)
    shard_problems, losses = problems(left, placement, None if ended else case.joined)
    if any(pod.role == SHARD_ROLE and pod.unschedulable for pod in seen.pods):
        shard_problems += unbound_claims(seen.children)
    deployed = shard_deployments(job)
    for workload in seen.workloads.values():
        if workload.trouble:
            said = f"{workload.kind} {workload.name} cannot make a pod: {workload.trouble}"
            (shard_problems if workload.name in deployed else losses).append(said)
    return Facts(
        **facts_of_replies(seen.replies, job.spec.sync),
        phase=case.phase,
        warnings=needs.warnings(job.spec),
        unaccepted=(seen.reason, seen.error) if seen.error else None,
        shard_problems=tuple(shard_problems),
        desired=job.spec.learners,
        live=None if live is None else len(live),
        missing=job_status.missing(job, seen.replies),
        starting=starting(case),
        away=phases.away(job, case.settings, job_status.missing(job, seen.replies), seen.registrar)
        if case.home
        else (),
        held_elsewhere=situation.held_elsewhere(left, seen.registrar, case.now),
        quorum=job.spec.learners_needed,
        losses=tuple(losses),
        exited=tuple(sorted(last_words(pod) for pod in case.exited)),
        held=tuple(storm.message for storm in placement.held),
        drift=_drift(case) if case.home else (),  # elsewhere the home's length counts
        other_counts=job_status.unlisted(job, seen.replies)
        if case.home
        else phases.differences(job, next(iter(seen.replies), None)),
        stale_endpoints=children.stale(job, seen.nodes, _endpoints(case) or ())
        if case.home
        else (),
        transport=_transport(case),
        stalled_seconds=seen.remembered.still_seconds,
        ephemeral=not job.spec.syncer.storage.outlives_pods,
        larger_claims=tuple(larger_claims(seen.children, job.spec.syncer.storage.size)),
        pods_left=sum(pod.role == LEARNER_ROLE for pod in seen.pods),
        unreachable=_unreachable(case),
        begun=conditions.has_begun(seen.status.conditions or []),
        hold=case.hold,
        served=any(case.settings.serves(region.name) for region in job.spec.regions),
        certificates=case.certificates.missing,
        certificates_reason=case.certificates.why,
        expiring=(
            *case.certificates.expiring,
            *(f"{slot}: {said}" for slot, said in sorted(seen.remembered.troubles.items())),
        ),
    )


def _drift(case: Situation) -> tuple[str, ...]:
    """Describe shards that know another length than the manifest's."""
    spec = case.job.spec
    name, asked = ("steps", spec.steps) if spec.tokens is None else ("tokens", spec.tokens)
    known = {reply.shard: getattr(reply, name) for reply in case.seen.replies if reply is not None}
    others = [f"{length} at shard {shard}" for shard, length in known.items() if length != asked]
    return (f"spec.{name} is {asked}, and still {', '.join(others)}",) if others else ()


def _transport(case: Situation) -> str:
    """Describe a run on another transport than the manifest's; empty: it is the same."""
    asked = case.job.spec.syncer.tls.mode
    if case.seen.tls is None or case.seen.tls == (asked is TlsMode.REQUIRED):
        return ""
    if not any(workload.replicas for workload in case.seen.workloads.values()):
        return ""  # it starts as the manifest says
    way = "over TLS" if case.seen.tls else "in plain text"
    remedy = "suspend the job and resume it when it has no pods"
    if not case.job.spec.syncer.storage.outlives_pods:
        remedy = "start another job, since Ephemeral storage keeps its shards' pods while suspended"
    return f"spec.syncer.tls.mode is {asked}, and the run continues {way} as it began; {remedy}"


def _unreachable(case: Situation) -> tuple[str, ...]:
    """Advise on silent shards whose own kubelet finds them ready: the way is blocked."""
    seen = case.seen
    if not case.home:
        return _unreachable_endpoints(case)
    ready = {pod.shard for pod in seen.pods if pod.role == SHARD_ROLE and pod.ready}
    silent = [str(number) for number in _silent(seen) if number in ready]
    if not silent:
        return ()
    return (
        f"the pod of shard {', '.join(silent)} is Ready, but the operator gets no answer from it:"
        f" let the operator's namespace reach port {SHARD_PORT} through NetworkPolicies and the"
        " service mesh",
    )


def _silent(seen: Observation) -> list[int]:
    seconds = seen.remembered.silent_seconds
    return [
        number
        for number, reply in enumerate(seen.replies)
        if reply is None and seconds.get(number, 0.0) >= UNREACHABLE_SECONDS
    ]


def _unreachable_endpoints(case: Situation) -> tuple[str, ...]:
    seen, endpoints = case.seen, case.job.spec.syncer.endpoints
    silent = _silent(seen) if endpoints else []
    mute = ", ".join(endpoints[number] for number in silent if number not in seen.refusals)
    refusing = ", ".join(endpoints[number] for number in silent if number in seen.refusals)
    found = []
    if mute:
        found.append(
            f"nothing answers at {mute}: compare spec.syncer.endpoints with"
            " status.syncer.endpoints in the syncer's cluster, and let this cluster reach them"
        )
    if refusing:
        found.append(
            f"what answers at {refusing} refuses the credentials of this cluster: see Accepted"
        )
    return tuple(found)


# ---------------------------------------------------------------- learners that start


def starting(case: Situation) -> tuple[str, ...]:
    """Slots of learners that are not in training because they start, in the manifest's order.

    docs/conditions.md (Learners that start) has the cases. Each lasts at most STARTING_SECONDS_MAX,
    as long as nothing is wrong with the pod. That a new template has ended a pod, and that a
    learner was terminated in an orderly way (Leave), is known from memory alone. After a resume the
    shards may know of no slot, as if it had never trained.

    The time counts from the making of the present pod. Where there is none it counts from the
    moment at which the job began to ask for the slot, or at which its learner left; never from
    before the job's last start.
    """
    pods: dict[str, list[Pod]] = {}
    for pod in case.seen.pods:
        if pod.role == LEARNER_ROLE and case.settings.serves(pod.region):
            pods.setdefault(pod.slot, []).append(pod)
    missing = job_status.missing(case.job, case.seen.replies)
    return tuple(slot for slot in missing if _starts(case, slot, pods.get(slot, [])))


def _starts(case: Situation, slot: str, pods: Sequence[Pod]) -> bool:
    remembered, running_seconds = case.seen.remembered, case.before.running_seconds or 0.0
    present = [pod for pod in pods if not pod.terminating]
    if any(_is_troubled(pod, case.placement.lost) for pod in present):
        return False
    slots = case.seen.registrar.slots if case.seen.registrar is not None else ()
    shown = next((entry for entry in slots if entry.slot == slot), None)
    joining = shown is None or job_status.starts(shown)
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


# ---------------------------------------------------------------- counts by region


def ready_by_region(
    pods: Iterable[Pod], regions: Sequence[str], hosts_needed: int = 1
) -> dict[str, int]:
    """Learners with so many Ready hosts, host 0 among them, by region."""
    hosts: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for pod in pods:
        if pod.role == LEARNER_ROLE and pod.ready and not pod.terminating:
            hosts[pod.region, pod.ordinal].add(pod.host)
    found = dict.fromkeys(regions, 0)
    for (region, _), ready in hosts.items():
        if region in found:
            found[region] += 0 in ready and len(ready) >= hosts_needed
    return found


def replaced_by_region(job: Job, workloads: Mapping[str, Workload]) -> dict[str, int]:
    found = {region.name: 0 for region in job.spec.regions}
    for name, region in learner_sets(job).items():
        live = workloads.get(name)
        found[region] += sum(each.count for each in live.replaced.values()) if live else 0
    return found


# ---------------------------------------------------------------- whether to write


def _write(
    seen: Observation, found: Sequence[Condition], status: Status, now: float
) -> StatusWrite | None:
    """Return None when nothing is new, or only progress a moment after the last write."""
    old = seen.status
    known = old.conditions or []
    generation = seen.raw["metadata"]["generation"]
    merged = conditions.merged(known, found, generation, rfc3339(now))
    new = status.model_copy(update={"observed_generation": generation, "conditions": merged})
    if _without_clock(new) == _without_clock(old):
        return None
    urgent = _states(known) != _states(merged) or _lasting(new) != _lasting(old)
    busy = seen.remembered.writes_a_minute >= BUSY_WRITES
    wait = (BUSY_SECONDS if busy else 0.0) if urgent else WRITE_SECONDS
    if seen.remembered.unwritten_seconds < wait:
        return None
    changed = conditions.transitions(known, found)
    before = {condition.type: condition.status for condition in known}
    begun = conditions.has_begun(known)
    said = [
        actions.of_transition(seen.raw, each, before.get(each.type, ""), rfc3339(now), begun=begun)
        for each in changed
    ]
    held = next((condition for condition in found if condition.reason == NODE_LOSS_HELD), None)
    if held is not None and all(condition.reason != NODE_LOSS_HELD for condition in known):
        said.append(actions.warning(seen.raw, NODE_LOSS_HELD, "", held.message, rfc3339(now)))
    if old.run and new.run and new.run != old.run:
        step = new.progress.step if new.progress else None
        said.append(actions.run_lost(seen.raw, old.run, new.run, step, rfc3339(now)))
    return StatusWrite(status=new.to_object(), changed=changed, events=tuple(said), urgent=urgent)


def _states(found: Sequence[Condition]) -> list[tuple[str, str, str, int | None]]:
    """Without messages, which may name a number that moves all the time."""
    return [
        (condition.type, condition.status, condition.reason, condition.observed_generation)
        for condition in found
    ]


def _without_clock(status: Status) -> Status:
    """Drop the time of a status's numbers: the same numbers a second later are no news."""
    if status.progress is None:
        return status
    still = {"last_updated_time": "", "estimated_remaining_seconds": None}
    return status.model_copy(update={"progress": status.progress.model_copy(update=still)})


def _lasting(status: Status) -> Status:
    """Drop what moves all the time, and the conditions."""
    columns = status.columns.model_copy(update={"progress": None}) if status.columns else None
    moving = {"progress": None, "conditions": None, "columns": columns}
    return status.model_copy(update=moving)


IDLE_SECONDS = 10.0  # learners join again within seconds after a restart of the registrar


def marks(
    pods: Sequence[Pod], replies: Sequence[pb.StatusReply | None], idle_seconds: Mapping[str, float]
) -> tuple[Mark, ...]:
    """`idle_seconds`: by UID of a head's pod, since it is shown as neither Training nor Stalled."""
    if not replies or any(r is None or r.state != pb.SHARD_SERVING for r in replies):
        return ()
    registrar = replies[0]
    slots = registrar.slots if registrar is not None else []
    busy = with_hosts(frozenset(s.uid for s in slots if s.state in BUSY_STATES), pods)
    idle = with_hosts(
        frozenset(uid for uid, seconds in idle_seconds.items() if seconds >= IDLE_SECONDS), pods
    )
    found = []
    for pod in pods:
        if pod.role != LEARNER_ROLE or not pod.gated or pod.ended or pod.terminating:
            continue
        known = busy if not pod.trains else idle
        if pod.uid in known:
            found.append(Mark(pod=pod.name, uid=pod.uid, trains=not pod.trains))
    return tuple(found)
