"""A region's credentials for another cluster or a machine, by a person's own rights.

The person may read the job and the Secret with its authority in the cluster where the syncer runs;
what is made holds private keys.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll_operator.api.job.fields import TlsMode
from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.job_status import Status
from atoll_operator.authority.job_authority import AUTHORITY_DAYS, Authorities
from atoll_operator.client.job_client import JobClient
from atoll_operator.kube.names import Annotation, credentials_name, generations, machines
from atoll_operator.kube.observed.observation import Object
from atoll_operator.kube.plan import certificates
from atoll_operator.kube.plan.certificates import authority_of
from atoll_protos.errors import SpecError
from atoll_protos.names import split_slot
from atoll_protos.network.credentials import PART, Credentials, JobIdentity

DAY_SECONDS = 86_400
DAYS_MIN = 0.001
DAYS_MAX = AUTHORITY_DAYS // 6  # so long an authority that signs lives on, at least (`turned`)
SOON = "when the kubelet has shown them that, within two minutes"
NO_OTHER = "the job has no region in another cluster, and needs no credentials"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCredentials:
    """Those of one region, as a Secret, and the job that they are for."""

    job: Job
    shown_endpoints: tuple[str, ...]  # by shard, as the syncer's cluster shows them; may be empty
    slots: tuple[str, ...] = ()  # of a machine; empty: any of the region
    secret: Object = field(repr=False)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """By which learners outside of the syncer's cluster reach the shards. Raises SpecError."""
        found = tuple(self.job.spec.syncer.endpoints) or self.shown_endpoints
        if not found:
            problem = "is empty, and the job shows no addresses of its shards yet"
            remedy = "set spec.syncer.expose, and wait until status.syncer.endpoints has them"
            raise SpecError("spec.syncer.endpoints", problem, remedy)
        return found

    @property
    def learner(self) -> Credentials:
        """Without those of the region's operator, which a machine does not need."""
        return certificates.credentials_of(self.secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMachine:
    """Of a region. `learners` None: as many as it has, else one."""

    name: str
    learners: int | None = None


def credentials_of(
    job: str,
    region: str,
    machine: OneMachine | None = None,
    *,
    namespace: str,
    context: str,
    days: float,
    now: float,
) -> RegionCredentials:
    """Return new ones, which live for `days`. `now` is in UNIX seconds. Raises SpecError.

    Those of one machine alone count for its slots alone, which the job's object has from then on.
    """
    if not DAYS_MIN <= days <= DAYS_MAX:
        problem = f"{days:g} days are not possible"
        remedy = f"give {DAYS_MIN} (86 seconds) to {DAYS_MAX}: the authority may not live longer"
        raise SpecError("--days", problem, remedy)
    jobs = JobClient(namespace, context)
    raw = jobs.get(job)
    found = from_object(raw, stored=True)
    _check(found, region)
    annotations, slots = raw["metadata"].get("annotations") or {}, tuple[str, ...]()
    if machine is not None:
        known = machines(annotations)
        slots = slots_of(machine, region, found, known)
        if known.get(machine.name) != slots:
            _annotate(jobs, raw, Annotation.MACHINES, {**known, machine.name: slots})
    owner = JobIdentity(namespace=jobs.namespace, job=job, uid=raw["metadata"]["uid"])
    made = certificates.secret(
        Authorities.from_files(jobs.secret(job, authority_of(found))),
        owner,
        region,
        credentials_name(job, region),
        now,
        days * DAY_SECONDS,
        generations(annotations).get(region, 0),
        machine.name if machine else "",
    )
    syncer = Status.read(raw.get("status")).syncer
    shown = tuple((syncer.endpoints if syncer else None) or ())
    return RegionCredentials(job=found, shown_endpoints=shown, slots=slots, secret=made)


def slots_of(
    machine: OneMachine, region: str, job: Job, known: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Those that it has, or free ones; `known` are those of all machines. Raises SpecError."""
    name, had = machine.name, known.get(machine.name)
    if re.fullmatch(PART, name) is None:
        raise SpecError("--machine", f"{name!r} is no name", "use letters, digits, inner dashes")
    if had == ():
        remedy = "give another name: a machine that was shut out does not come back with its own"
        raise SpecError("--machine", f"{name} was shut out", remedy)
    if had is not None and split_slot(had[0])[0] != region:
        problem = f"{name} has {', '.join(had)}, and not slots of region {region}"
        raise SpecError("--machine", problem, "give each machine a name of its own")
    if job.spec.learner.hosts > 1:
        problem = "is for learners of one machine each, and spec.learner.hosts is more"
        raise SpecError("--machine", problem, "leave it out")
    every = next(entry.slots for entry in job.spec.regions if entry.name == region)
    own = [slot for slot in had or () if slot in every]
    taken = {slot for slots in known.values() for slot in slots}
    usable = [*own, *(slot for slot in every if slot not in taken)]
    wanted = machine.learners or len(own) or 1
    if wanted > len(usable):
        problem = f"{wanted} wanted, and machines have all but {len(usable)} of region {region}"
        number = len(every) + wanted - len(usable)
        remedy = f"kubectl edit dtj {job.name}: {number} learners of region {region}"
        raise SpecError("--learners", problem, remedy)
    return tuple(usable[:wanted])


def revoked(job: str, region: str, machine: str = "", *, namespace: str, context: str) -> str:
    """Shut out the certificates a region has so far, or those of one machine of it.

    Returns what was done, in words. Raises SpecError. The operator tells the shards within
    seconds; they read it when the kubelet shows the list.
    """
    jobs = JobClient(namespace, context)
    raw = jobs.get(job)
    found = from_object(raw, stored=True)
    regions = [entry.name for entry in found.spec.regions]
    if region not in regions:
        remedy = f"{_one_of(regions)}; regions that a job has not any more are shut out anyway"
        raise SpecError("--revoke", f"{region} is not a region of {job}", remedy)
    if found.spec.syncer.tls.mode is TlsMode.DISABLED:
        problem = "is Disabled: its processes talk in plain text and have no certificates"
        raise SpecError("spec.syncer.tls.mode", problem, "take the region out of the manifest")
    annotations = raw["metadata"].get("annotations") or {}
    if machine:
        entered = machines(annotations)
        own = [slot for slot in entered.get(machine, ()) if split_slot(slot)[0] == region]
        if not own:
            there = [name for name, slots in entered.items() if slots]
            remedy = f"{_one_of(there)}; one without a name has those of the whole region"
            raise SpecError("--machine", f"{machine} is none of region {region}", remedy)
        _annotate(jobs, raw, Annotation.MACHINES, {**entered, machine: ()})
        return f"machine {machine} is shut out {SOON}; {', '.join(own)} can go to another one"
    known = generations(annotations)
    known[region] = known.get(region, 0) + 1
    _annotate(jobs, raw, Annotation.REVOKED, known)
    again = (
        "learners there get new ones by themselves"
        if region == found.spec.syncer_region
        else f"atoll credentials {job} -n {jobs.namespace} --region {region} prints valid ones"
    )
    return (
        f"the certificates that region {region} has so far are revoked: shards end their sessions"
        f" {SOON}; {again}"
    )


def _annotate(jobs: JobClient, raw: Any, annotation: str, value: Mapping[str, Any]) -> None:
    """Write it on the job as it was read; of two persons at a time, the second one gets a 409."""
    metadata, text = raw["metadata"], json.dumps(value, sort_keys=True)
    jobs.annotate(metadata["name"], annotation, text, metadata["resourceVersion"])


def _check(job: Job, region: str) -> None:
    """Raise SpecError where there is nothing to print for this region."""
    regions = [entry.name for entry in job.spec.regions]
    if region not in regions:
        others = [entry for entry in regions if entry != job.spec.syncer_region]
        remedy = _one_of(others) if others else NO_OTHER
        raise SpecError("--region", f"{region} is not a region of {job.name}", remedy)
    if region == job.spec.syncer_region:  # its operator alone may say what becomes of the job
        problem = f"{region} is where the syncer runs, and has its certificates"
        others = [entry for entry in regions if entry != region]
        raise SpecError("--region", problem, _one_of(others) if others else NO_OTHER)
    if job.spec.syncer.tls.mode is TlsMode.DISABLED:
        problem = "is Disabled: its processes talk in plain text and need no credentials"
        raise SpecError("spec.syncer.tls.mode", problem, "apply the manifest in that cluster")


def _one_of(regions: list[str]) -> str:
    return f"give one of {', '.join(regions)}"
