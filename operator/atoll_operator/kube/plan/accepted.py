"""The manifest that a job runs with, and the live pod templates that stay as they are.

A job that trains must not suffer from a manifest that this operator cannot honour. So the manifest
of each accepted pass is kept in the ConfigMap `JOB-accepted`, and the job goes on with that one.
Only `spec.suspend` is taken from the present one all the same, so that a job can always be stopped.
Fields that this version does not know are ignored (`api.job.parsing`).

An upgrade of the operator restarts nobody. A pod template is rendered from what the user wrote,
what this install adds (its default images), and how this version writes it down. A change of the
first is an edit; one of the others is an upgrade. Templates are applied after an edit, else the
live ones stay. JOB-accepted has, beside the manifest, the generation of the job for which its
templates are rendered, and the default images of then (`Record`). Each workload has that generation
and the hash of its template in an annotation (Annotation.RENDERED).

    new job          no record: all is rendered; the record is applied first, then the workloads
    edit             the manifest in force differs from the record's in what templates depend on
                     (`inputs`): the record gets the job's generation, and all workloads are
                     rendered, so that no run is made of parts of two versions
    other edit       of learners, length, suspend and the like: templates stay
    bad edit         the dry run refuses a template: the workload, its annotation and its pods stay
                     as they are, the record has the edit, so it is tried again until it is taken
    upgrade          a workload of the record's generation whose rendering has another hash now
                     keeps its live template; where the hash is the same, it is rendered all the
                     same, so that a change by hand is reverted
    child deleted    it is rendered by this version, with the images of the record
    changed by hand  as the comparison finds (`applied`); in a template that an older version has
                     written, what others change stays until the next edit
    restart          of the operator in the middle of an edit: workloads that have an older
                     generation than the record follow
    record deleted   or spoilt: all is rendered, as for an edit
    nothing runs     a job that is resumed gets the present rendering

A run goes on over TLS or in plain text as it began (`speaks_tls`): a shard serves in one way, and a
learner of the other cannot join. The ConfigMap of the run file that live templates name stays in
use, and for another number of learners or length that of learners is changed in that one place.
That of shards keeps the length with which it was made: they read the present one from a file.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atoll_operator.api.job import parsing
from atoll_operator.api.job.parsing import from_object
from atoll_operator.api.job.spec import Job
from atoll_operator.kube import names
from atoll_operator.kube.names import ACCEPTED_SPEC, shard_name
from atoll_operator.kube.observed.objects import RESTARTED_AT, document, key_of, run_files
from atoll_operator.kube.observed.observation import WORKLOADS, Object, Raw
from atoll_operator.kube.plan import pods
from atoll_operator.kube.plan.phase import NOT_SUPPORTED, Running
from atoll_operator.kube.settings import Settings
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.names import Label

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
    """Read the manifest to act on; `children`, the job's objects, hold the last accepted.

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
    """Raise SpecError for an invalid one."""
    own = {name: metadata[name] for name in ("name", "uid") if name in metadata}
    return from_object({"metadata": own, "spec": spec}, stored=True)


def _unreachable(job: Job, serves: Callable[[str], bool]) -> SpecError | None:
    """Check that learners here can find the shards, which are in another cluster."""
    home = job.spec.syncer_region
    if serves(home) or job.spec.syncer.endpoints:
        return None
    if not any(serves(region.name) for region in job.spec.regions):
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
    """Check that this install starts no second syncer of a job whose syncer runs elsewhere.

    Helm forgets what an earlier upgrade has set, and an install without `regions` serves all. Two
    things show it: learners were started here that dial spec.syncer.endpoints, or nobody has named
    this cluster's regions, and no shard of the job is here.
    """
    endpoints = ",".join(job.spec.syncer.endpoints)
    if not endpoints or not serves(job.spec.syncer_region):
        return None
    shards = {shard_name(job.name, n) for n in range(job.spec.syncer.shards)}
    workloads = [child for child in children if child["kind"] in WORKLOADS]
    dialled = any(
        variable.get("name") == Env.ENDPOINTS and variable.get("value") == endpoints
        for workload in workloads
        for container in workload["spec"]["template"]["spec"]["containers"]
        for variable in container.get("env") or ()
    )
    new = spans_regions and not any(
        workload["metadata"]["name"] in shards for workload in workloads
    )
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
    """Return the manifest accepted last, if there is one that this version can honour."""
    spec = document(_accepted(children, raw["metadata"]["name"]).get(SPEC))
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


def spec_text(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)


RESTARTS_NOBODY = {"regions", "steps", "tokens", "suspend", "managedBy", "failure",
                   "ttlSecondsAfterFinished", "activeDeadlineSeconds"}  # fmt: skip
LENGTH = ("steps", "tokens")
OF_A_REGION = {"podOverrides", "placement"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """For what a job's templates are rendered, as JOB-accepted has it beside the manifest."""

    job: Job  # as the manifest that was in force last says
    generation: int
    images: Mapping[str, str]  # by program: worker, syncer


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTemplate:
    """The template that a workload has now, and the hash with which it was rendered."""

    hash: str
    raw: Raw

    def without_additions(self, rendered: Raw) -> Object:
        """Return the template without lost nodes and a restart; `rendered`: by this version."""
        found = pods.without_exclusions(self.raw, rendered)
        metadata = {**(found.get("metadata") or {})}
        metadata.pop("creationTimestamp", None)
        others = {**(metadata.get("annotations") or {}), names.Annotation.TEMPLATE: self.hash}
        others.pop(RESTARTED_AT, None)  # kubectl's, not ours
        return {**found, "metadata": {**metadata, "annotations": others}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderings:
    """What of earlier renderings one pass keeps; by default nothing, as for a new job."""

    generation: int = 1  # of the job, now
    rendered: int = 1  # of the job, that all templates are to be rendered for
    images: Mapping[str, str] = field(default_factory=dict)  # in place of the install's
    live: Mapping[str, LiveTemplate] = field(default_factory=dict)
    """By workload: those that stay where this version renders them in another way."""
    learners_file: str = ""  # text of the run file; empty: made from the job
    shards_file: str = ""
    present_shards_file: str = ""  # that shards have now, kept or not
    tls: bool | None = None  # how the processes talk; None: as the manifest says

    def settings(self, install: Settings) -> Settings:
        worker = self.images.get("worker") or install.worker_image
        syncer = self.images.get("syncer") or install.syncer_image
        return replace(install, worker_image=worker, syncer_image=syncer)

    def record(self, install: Settings, *, tls: bool) -> str:
        """Write the record, but for the manifest."""
        used = self.settings(install)
        images = {"worker": used.worker_image, "syncer": used.syncer_image}
        return json.dumps({"generation": self.rendered, "images": images, "tls": tls})

    def note(self, hashed: str) -> str:
        return f"{self.rendered} {hashed}"


def renderings_of(
    job: Job, generation: int, manifest: Raw, children: Iterable[Raw], running: Running, *,
    home: bool = True,
) -> Renderings:  # fmt: skip
    """Find what stays of `children`, the live ones; `job` was read from `manifest`.

    `home`: the syncer runs here.
    """
    children = tuple(children)
    record, configs = _record(children, job, manifest), run_files(children)
    live = {child["metadata"]["name"]: child for child in children if child["kind"] in WORKLOADS}
    regions, shards = names.learner_sets(job), names.shard_deployments(job)
    at_rest = not any(_replicas(each) for each in live.values())
    tls = None if at_rest else speaks_tls(children, job.name)
    fresh = Renderings(generation=generation, rendered=generation, tls=tls)
    if record is None or (at_rest and (running.learners or running.shards)):
        return fresh
    before, now = inputs(record.job, home=home), inputs(job, home=home)
    edited = any(before[each] != now[each] for each in before.keys() & now.keys())
    rendered = generation if edited else record.generation
    kept = {
        name: LiveTemplate(hash=hashed, raw=each["spec"]["template"])
        for name, each in live.items()
        if (hashed := _hash_of(each, rendered))
    }
    of_learners = _file([kept[name].raw for name in regions if name in kept], configs)
    return Renderings(
        generation=generation,
        rendered=rendered,
        images={} if edited else record.images,
        live=kept,
        learners_file=of_learners and with_present(of_learners, job),
        shards_file=_file([kept[name].raw for name in shards if name in kept], configs),
        present_shards_file=_file(
            [live[name]["spec"]["template"] for name in shards if name in live], configs
        ),
        tls=tls,
    )


def _record(children: Iterable[Raw], job: Job, manifest: Raw) -> Record | None:
    """Read the record; None: none can be read. `job` was read from `manifest`."""
    data = _accepted(children, job.name)
    noted, text = document(data.get(names.RENDERED)), data.get(names.ACCEPTED_SPEC)
    generation, images = noted.get("generation"), noted.get("images")
    if not isinstance(generation, int) or not isinstance(images, dict):
        return None
    if not all(isinstance(images.get(program), str) for program in ("worker", "syncer")):
        return None
    if text != spec_text(manifest):
        try:
            job = from_object({"metadata": {"name": job.name}, "spec": document(text)}, stored=True)
        except SpecError:
            return None
    return Record(job=job, generation=generation, images=images)


def _accepted(children: Iterable[Raw], job: str) -> Raw:
    key = ("ConfigMap", names.accepted_name(job))
    found = next((child for child in children if key_of(child) == key), {})
    return found.get("data") or {}


def speaks_tls(children: Iterable[Raw], job: str) -> bool | None:
    """Whether the processes of a job talk over TLS; None: it has no workloads.

    Where no record says so, those that run, first shards, decide it.
    """
    children = tuple(children)
    noted = document(_accepted(children, job).get(names.RENDERED)).get("tls")
    first = min(
        (child for child in children if child["kind"] in WORKLOADS),
        key=lambda each: (not _replicas(each), not _of_shard(each)),
        default=None,
    )
    if first is None or isinstance(noted, bool):
        return None if first is None else noted
    return pods.speaks_tls(first["spec"]["template"])


def _replicas(workload: Raw) -> int:
    return int((workload.get("spec") or {}).get("replicas") or 0)


def _of_shard(workload: Raw) -> bool:
    return (workload["metadata"].get("labels") or {}).get(Label.ROLE) == names.SHARD_ROLE


def inputs(job: Job, *, home: bool = True) -> dict[str, str]:
    """Hashes of what templates depend on: learners' by region, and what all share under "".

    A field with its default is as good as absent: the CRD of another version may have stored it,
    and the next patch takes it away. How others reach the shards is nothing to pods of their home.
    """
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    outside = {"expose", "endpoints", "tls"} if home else {"expose", "tls"}
    syncer = spec.pop("syncer", {})
    if inside := {name: value for name, value in syncer.items() if name not in outside}:
        spec["syncer"] = inside
    regions = {
        each["name"]: digest({name: each[name] for name in OF_A_REGION & each.keys()})
        for each in spec["regions"]
    }
    shared = {name: value for name, value in spec.items() if name not in RESTARTS_NOBODY}
    return {"": digest(shared)} | regions


def _hash_of(workload: Raw, rendered: int) -> str:
    """Return the hash of a template that was rendered for this generation, else empty."""
    noted = (workload["metadata"].get("annotations") or {}).get(names.Annotation.RENDERED, "")
    generation, _, hashed = noted.partition(" ")
    return hashed if generation == str(rendered) else ""


def _file(templates: Iterable[Raw], configs: Mapping[str, str]) -> str:
    """Return the run file that kept templates mount; empty where its ConfigMap is missing."""
    texts = (configs.get(pods.run_config_of(template)) for template in templates)
    return next(filter(None, texts), "")


def same_but_for_length(one: str, other: str) -> bool:
    found = [json.loads(text) for text in (one, other)]
    return bool(found[0] | _length(one) == found[1] | _length(one))


def _length(text: str) -> dict[str, int | None]:
    document = json.loads(text)
    return {name: document.get(name) for name in LENGTH}


def with_present(text: str, job: Job) -> str:
    """Set the job's present length, regions and learners in a run file, and nothing else."""
    document = json.loads(text) | {name: getattr(job.spec, name) for name in LENGTH}
    known = {each["name"]: each for each in document.get("regions", [])}
    document["regions"] = [
        {**known.get(region.name, {}), "name": region.name, "learners": region.learners}
        for region in job.spec.regions
    ]
    return json.dumps(document, indent=2) + "\n"


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
