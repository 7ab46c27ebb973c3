"""The manifest that a job runs with: the present one, or else the one that was accepted last.

A job that trains must not suffer from a manifest that this operator cannot honour. So the manifest
of each accepted pass is kept in the ConfigMap `<job>-accepted`, and the job goes on with that one.
Only `spec.suspend` is taken from the present one all the same, so that a job can always be stopped.
Fields that this version does not know are ignored (`api.job.parsing`).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll_operator.api.job import parsing
from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.spec import Job
from atoll_operator.kube.names import ACCEPTED_SPEC, accepted_name, shard_name
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.objects import key_of
from atoll_operator.kube.observed.observation import WORKLOADS, Object
from atoll_operator.kube.plan.phase import NOT_SUPPORTED
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

INVALID = "Invalid"  # reason of Accepted when the manifest cannot be read
ENDPOINTS_MISSING = "EndpointsMissing"  # likewise, when the syncer elsewhere cannot be found
TWO_HOMES = "TwoHomes"  # likewise, when the job's shards seem to run in another cluster
SPEC = ACCEPTED_SPEC
TOO_MANY_CHILDREN = "TooManyChildren"  # likewise, when an install has no room for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The job to run, and what is wrong with its present manifest."""

    job: Job | None  # None: neither the present manifest nor an earlier one can be read
    spec: Mapping[str, Any] = field(default_factory=dict)  # that `job` was read from
    reason: str = ""  # of the condition Accepted; empty: nothing is wrong
    error: str = ""


def read(
    raw: Object,
    children: Iterable[Object],
    serves: Callable[[str], bool] = lambda region: True,
    *,
    spans_regions: bool = False,
    denied: SpecError | None = None,
) -> Reading:
    """The manifest to act on; `children` are the job's objects, which hold the last accepted.

    `serves` says whether this install runs a region, and `spans_regions` that it runs all.
    `denied`: the install has no room for all of it.
    """
    children = tuple(children)
    present = None
    try:
        present = _job(raw["metadata"], raw.get("spec"))
    except SpecError as wrong:
        reason, error = INVALID, str(wrong)
    else:
        refused, unreachable = parsing.on_a_cluster(present), _unreachable(present, serves)
        foreign = _second_home(present, children, serves, spans_regions=spans_regions)
        if foreign is not None:
            return Reading(job=None, reason=TWO_HOMES, error=str(foreign))
        if refused is None and unreachable is None and denied is None:
            return Reading(job=present, spec=raw["spec"])
        reason, error = NOT_SUPPORTED, str(refused)
        if refused is None and unreachable is not None:
            reason, error, present = ENDPOINTS_MISSING, str(unreachable), None
        elif refused is None:
            reason, error, present = TOO_MANY_CHILDREN, str(denied), None
    last = _last(raw, children, serves)
    if last is None:
        return Reading(job=present, reason=reason, error=error)
    spec, job = last
    return Reading(job=job, spec=spec, reason=reason, error=error)


def _job(metadata: Mapping[str, Any], spec: Any) -> Job:
    """Raises SpecError."""
    own = {name: metadata[name] for name in ("name", "uid") if name in metadata}
    return from_object({"metadata": own, "spec": spec}, stored=True)


def _unreachable(job: Job, serves: Callable[[str], bool]) -> SpecError | None:
    """That learners here could not find the shards, which are in another cluster."""
    home = job.spec.syncer_region
    if serves(home) or job.spec.syncer.endpoints:
        return None
    if not any(serves(each.name) for each in job.spec.regions):
        return None  # nobody here asks for them
    return SpecError(
        "spec.syncer.endpoints",
        f"is missing: the syncer runs in the region {home}, which this install does not serve",
        "in the cluster of that region give spec.syncer.expose.type NodePort or LoadBalancer, and"
        f" copy what `kubectl get dtj {job.name} -o jsonpath='{{.status.syncer.endpoints}}'` prints"
        " there; if that region is to be served here, see the chart's value regions",
    )


def _second_home(
    job: Job, children: Sequence[Object], serves: Callable[[str], bool], *, spans_regions: bool
) -> SpecError | None:
    """That this install would start a second syncer of a job whose syncer runs elsewhere.

    Helm forgets what an earlier upgrade has set, and an install without `regions` serves all. Two
    things show it: learners were started here that dial spec.syncer.endpoints, or nobody has named
    this cluster's regions, and no shard of the job is here.
    """
    endpoints = ",".join(job.spec.syncer.endpoints)
    if not endpoints or not serves(job.spec.syncer_region):
        return None
    shards = {shard_name(job.name, n) for n in range(job.spec.syncer.shards)}
    workloads = [each for each in children if each["kind"] in WORKLOADS]
    dialled = any(
        variable.get("name") == Env.ENDPOINTS and variable.get("value") == endpoints
        for each in workloads
        for container in each["spec"]["template"]["spec"]["containers"]
        for variable in container.get("env") or ()
    )
    new = spans_regions and not any(each["metadata"]["name"] in shards for each in workloads)
    if not dialled and not new:
        return None
    return SpecError(
        "spec.syncer.endpoints",
        "says that the syncer is reached from several clusters, and this install would start"
        f" another one, since it serves {job.spec.syncer_region}, too"
        + (", and its learners here have joined that of another cluster" if dialled else ""),
        "name the regions of this cluster alone in the chart's value `regions`, in every cluster"
        " (helm upgrade forgets what --set has given before: keep a values file)",
    )


def _last(
    raw: Object, children: Iterable[Object], serves: Callable[[str], bool]
) -> tuple[Mapping[str, Any], Job] | None:
    """The manifest that was accepted last, if there is one that this version can honour."""
    name = accepted_name(raw["metadata"]["name"])
    for each in children:
        if key_of(each) != ("ConfigMap", name):
            continue
        spec = objects.document((each.get("data") or {}).get(SPEC))
        present = raw.get("spec")
        suspend = present.get("suspend") if isinstance(present, dict) else None
        if isinstance(suspend, bool):
            spec["suspend"] = suspend
        try:
            job = _job(raw["metadata"], spec)
        except SpecError:
            return None
        refused = parsing.on_a_cluster(job) or _unreachable(job, serves)
        return (spec, job) if refused is None else None
    return None


def text(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)
