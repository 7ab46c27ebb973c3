"""The first decision of a pass: which manifest is in force, and what else has to be looked at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atoll_operator.api.job.spec import Job
from atoll_operator.api.job.syncer_fields import TlsMode
from atoll_operator.kube.names import MANAGED_BY
from atoll_operator.kube.observed import objects, observation
from atoll_operator.kube.observed.observation import Object, Observation, Pod, Shown
from atoll_operator.kube.plan.certificates.issuing import leaf_names, needed
from atoll_operator.kube.plan.losses.sessions import shard_addresses
from atoll_operator.kube.plan.manifest import accepted, elsewhere
from atoll_operator.kube.plan.owner import JobOwner
from atoll_operator.kube.plan.situation import before_of
from atoll_operator.kube.plan.workloads.pods import container_names
from atoll_operator.kube.plan.workloads.rendering import speaks_tls
from atoll_operator.kube.settings import Settings
from atoll_protos.exits import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsToRead:
    """The Secrets with a job's certificates, and how urgently they are to be read."""

    owner: JobOwner
    waits: bool  # a pod cannot start, or no shard takes what is there
    names: frozenset[str] = frozenset()  # of those that the status tells of, too
    used: frozenset[str] = frozenset()  # by workloads: these stay, also of a region that has left


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is known without asking, and what is to be asked."""

    seen: Observation
    addresses: Mapping[int, str] = field(default_factory=dict)  # of shards to ask
    speaks_tls: bool = False  # whether they are asked over TLS
    secrets: SecretsToRead | None = None  # None: the job needs no certificates now


def inquire(shown: Shown, settings: Settings, now: float) -> Inquiry:
    """What to look at. Of a job that is not run here, or that cannot be read: nothing."""
    if not is_managed_here(shown.raw):
        return Inquiry(seen=Observation(at=shown.at, raw=shown.raw))
    found = accepted.read(
        shown.raw,
        shown.children,
        shown.former,
        settings.serves,
        shown.run_name,
        spans_regions=settings.spans_regions,
    )
    seen = Observation(
        at=shown.at,
        raw=shown.raw,
        job=found.job,
        accepted=found.spec,
        reason=found.reason,
        error=found.error,
        unread=shown.unread,
    )
    job = found.job
    if job is None or shown.unread:
        return Inquiry(seen=seen)
    workloads = [each for each in shown.children if each["kind"] in observation.WORKLOADS]
    seen = replace(
        seen, children=shown.children, pods=_pods(shown, job, now), tls=speaks_tls(workloads)
    )
    of_workload = observation.by_workload(job.name, seen.pods)
    parsed = [
        objects.workload(
            each,
            shown.failures.get(each["metadata"]["uid"]),
            of_workload.get(each["metadata"]["name"], ()),
        )
        for each in workloads
    ]
    seen = replace(seen, workloads=observation.by_name(parsed))
    over = before_of(seen, now).over
    addresses = shard_addresses(job, seen.pods, settings.serves)
    if over and not elsewhere.lingers(seen.status, now):
        addresses = dict.fromkeys(addresses, "")  # all is known
    required = job.spec.syncer.tls.mode is TlsMode.REQUIRED
    tls = required if seen.tls is None else seen.tls
    asks = tls and any(addresses.values())
    return Inquiry(
        seen=seen,
        addresses=addresses,
        speaks_tls=tls,
        secrets=_secrets(shown, seen, job, workloads, settings.serves, now, asks=asks),
    )


def is_managed_here(raw: Object) -> bool:
    """Whether this operator runs the job: it is not being deleted and has no other manager."""
    managed_by = raw["spec"].get("managedBy")
    return "deletionTimestamp" not in raw["metadata"] and managed_by in (None, MANAGED_BY)


def _pods(shown: Shown, job: Job, now: float) -> tuple[Pod, ...]:
    containers, found = container_names(job), []
    for each in shown.children:
        if each["kind"] == "Pod":
            pod = objects.pod(each, containers)
            failure = shown.failures.get(pod.uid)
            found.append(replace(pod, held_up=objects.held_up(pod, failure, now)))
    return tuple(found)


def _secrets(
    shown: Shown,
    seen: Observation,
    job: Job,
    workloads: Sequence[Object],
    serves: Callable[[str], bool],
    now: float,
    *,
    asks: bool,
) -> SecretsToRead | None:
    """Those to read; elsewhere than at the syncer only to ask (`asks`) the shards."""
    home = serves(job.spec.syncer_region)
    if home:
        runs = any(each["spec"].get("replicas") for each in workloads)
        if not needed(job, before_of(seen, now), runs=runs, tls=seen.tls):
            return None
    elif not asks:
        return None
    waits = any(
        objects.cannot_start(pod, now) or (pod.exit_code == ExitCode.TRY_AGAIN and not pod.runs)
        for pod in seen.pods
    )
    return SecretsToRead(
        owner=JobOwner.of(shown.raw, job.name),
        waits=waits or (not home and shown.refused),
        names=frozenset(leaf_names(job, seen.status) if home else ()),
        used=frozenset(objects.mounted_secrets(workloads)),
    )
