"""What running pods were rendered from, and how long that stays: an upgrade restarts nobody.

A pod template is rendered from what the user wrote, what this install adds (its default images),
and how this version of the operator writes it down. A change of the first is an edit; one of the
others is an upgrade, and restarts nobody: a template stays, word for word, until the user edits the
job. Each workload keeps it in an annotation of its own (Annotation.RENDERED):

    generation  of the job, when its inputs were last compared
    inputs      hash of what the user wrote that the template may depend on
    rendered    generation of the job for which the template was rendered
    images      the default images of the install at that time
    template    without lost nodes, which come and go; null where the note would be too long for
                an annotation: the live template then stands for it

A field that this version does not know is a later one's: it stays for as long as the template does.
The live template is no substitute: somebody may have changed it (`drift`).

What is an edit. `inputs` leaves out what restarts nobody. It is compared only when the job's
generation has changed: with the same generation another hash means another way of hashing, or
defaults of another CRD.

All or nothing. An edit of anything renders all workloads again, so that no run is made of parts of
two versions. `rendered` says which of them have their template already, and the later ones take the
images that the earlier ones have noted. When nothing of a job runs, it gets the present rendering.

A run goes on over TLS or in plain text as it began (`speaks_tls`), whatever is rendered again: a
shard serves in one way, and a learner of the other cannot join.

The run file is rendered, too. The ConfigMap that kept templates name stays in use, and for another
number of learners or length that of learners is changed in that one place. That of shards keeps the
length with which it was made: they read the present one from a file of its own.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll_operator.api.job.spec import Job
from atoll_operator.kube import names
from atoll_operator.kube.observed.objects import RESTARTED_AT
from atoll_operator.kube.observed.observation import Object, Raw
from atoll_operator.kube.plan.manifest.phase import Running
from atoll_operator.kube.plan.workloads import pods
from atoll_operator.kube.settings import Settings
from atoll_protos.names import Label

RESTARTS_NOBODY = {"regions", "steps", "tokens", "suspend", "managedBy", "failure",
                   "ttlSecondsAfterFinished", "activeDeadlineSeconds"}  # fmt: skip
LENGTH = ("steps", "tokens")
OF_A_REGION = {"podOverrides", "placement"}
NOTE_BYTES_MAX = 240_000  # of the 262,144 that all annotations of an object may have
NOTED = ("generation", "rendered", "inputs", "images", "template")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderingNote:
    """What a workload's template was rendered for, as the module describes."""

    generation: int
    rendered: int
    inputs: str
    images: Mapping[str, str]  # by program: worker, syncer
    template: Object
    more: Mapping[str, Any] = field(default_factory=dict)  # what only a later version knows

    def to_text(self) -> str:
        document = {**self.more, **{name: getattr(self, name) for name in NOTED}}
        text = _with_sum(document)
        return text if len(text) <= NOTE_BYTES_MAX else _with_sum({**document, "template": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderings:
    """What of earlier renderings one pass keeps; by default nothing, as for a new job."""

    generation: int = 1  # of the job, now
    rendered: int = 1  # of the job, that all templates are to be rendered for
    images: Mapping[str, str] = field(default_factory=dict)  # in place of the install's
    kept: Mapping[str, RenderingNote] = field(default_factory=dict)  # by workload
    inputs: Mapping[str, str] = field(default_factory=dict)  # by workload: hash of the job's
    learners_file: str = ""  # text of the run file; empty: made from the job
    shards_file: str = ""
    present_shards_file: str = ""  # that shards have now, kept or not
    tls: bool | None = None  # how the processes talk; None: as the manifest says

    def settings(self, install: Settings) -> Settings:
        worker = self.images.get("worker") or install.worker_image
        syncer = self.images.get("syncer") or install.syncer_image
        return replace(install, worker_image=worker, syncer_image=syncer)

    def note(self, name: str, template: Object, hashed: str, install: Settings) -> RenderingNote:
        """What a workload notes of a template, which excludes no nodes; `hashed`: its `inputs`."""
        images = self.settings(install)
        kept = self.kept.get(name)
        return RenderingNote(
            generation=self.generation,
            rendered=self.rendered,
            inputs=hashed,
            images={"worker": images.worker_image, "syncer": images.syncer_image},
            template=template,
            more=kept.more if kept else {},
        )


def renderings_of(
    job: Job, generation: int, workloads: Iterable[Raw], configs: Mapping[str, str],
    running: Running, *, home: bool = True,
) -> Renderings:  # fmt: skip
    """`workloads` are live ones, `configs` texts of run files; `home`: the syncer runs here."""
    live = {each["metadata"]["name"]: each for each in workloads}
    regions = names.learner_sets(job)
    shards = names.shard_deployments(job)
    of_regions = inputs(job, home=home)
    hashes = {name: of_regions[region] for name, region in regions.items()}
    hashes |= dict.fromkeys([*shards, names.evaluator_name(job.name)], of_regions[""])
    at_rest = not any(_replicas(each) for each in live.values())
    tls = None if at_rest else speaks_tls(live.values())
    fresh = Renderings(generation=generation, rendered=generation, inputs=hashes, tls=tls)
    if at_rest and (running.learners or running.shards):
        return fresh
    read_now = {name: read(each) for name, each in live.items() if name in hashes}
    notes = {name: note for name, note in read_now.items() if note is not None}
    if not notes:
        return fresh
    edited = any(
        note.generation != generation and note.inputs != hashes[name]
        for name, note in notes.items()
    )
    present = _file([note.template for name, note in notes.items() if name in shards], configs)
    rendered = generation if edited else max(note.rendered for note in notes.values())
    kept = {name: note for name, note in notes.items() if note.rendered == rendered}
    templates = {name: note.template for name, note in kept.items()}
    images: dict[str, str] = {}
    for note in kept.values():
        images |= note.images
    of_learners = _file([templates[name] for name in regions if name in templates], configs)
    return Renderings(
        generation=generation,
        rendered=rendered,
        images=images,
        kept=kept,
        inputs=hashes,
        learners_file=of_learners and with_present(of_learners, job),
        shards_file=_file([templates[name] for name in shards if name in templates], configs),
        present_shards_file=present,
        tls=tls,
    )


def speaks_tls(workloads: Iterable[Raw]) -> bool | None:
    """Whether the processes of a job talk over TLS; None: it has no workloads.

    Those that run, first shards, decide it. Pods of one scaled to nothing may still be ending.
    """
    first = min(
        workloads, key=lambda each: (not _replicas(each), not _of_shard(each)), default=None
    )
    if first is None:
        return None
    note = read(first)
    return pods.speaks_tls(note.template if note else _live_template(first))


def _replicas(workload: Raw) -> int:
    return int((workload.get("spec") or {}).get("replicas") or 0)


def _of_shard(workload: Raw) -> bool:
    return (workload["metadata"].get("labels") or {}).get(Label.ROLE) == names.SHARD_ROLE


def inputs(job: Job, *, home: bool = True) -> dict[str, str]:
    """Hashes of what templates depend on: learners' by region, shards' and evaluator's under "".

    A field with its default is as good as absent: the CRD of another version may have stored it,
    and the next patch takes it away. How others reach the shards is nothing to pods of their home.
    """
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    outside = {"expose", "endpoints", "tls"} if home else {"expose", "tls"}
    syncer = spec.pop("syncer", {})
    if inside := {name: value for name, value in syncer.items() if name not in outside}:
        spec["syncer"] = inside
    shared = digest({name: value for name, value in spec.items() if name not in RESTARTS_NOBODY})
    found = {"": shared[:16]}
    for each in spec["regions"]:
        own = {name: value for name, value in each.items() if name in OF_A_REGION}
        found[each["name"]] = digest([shared, own])[:16]
    return found


def read(workload: Raw) -> RenderingNote | None:
    """The note of a live workload; None: there is none, or somebody has changed it."""
    text = (workload["metadata"].get("annotations") or {}).get(names.Annotation.RENDERED)
    note = _parsed(text) if text else None
    if note is None or note.template:
        return note
    return replace(note, template=_live_template(workload))


def _parsed(text: str) -> RenderingNote | None:
    """The note, of which the sum is over all fields, also those that only a later version knows."""
    try:
        document = json.loads(text)
        noted = document.pop("sum")
        if noted != digest(document)[:16]:
            return None
        values = {name: document.pop(name) for name in NOTED}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return RenderingNote(**{**values, "template": values["template"] or {}}, more=document)


def _with_sum(document: Mapping[str, Any]) -> str:
    return json.dumps({**document, "sum": digest(document)[:16]}, separators=(",", ":"))


def _live_template(workload: Raw) -> Object:
    """The template that a workload has now, without what is not of its rendering."""
    template = pods.without_exclusions(workload["spec"]["template"])
    template["metadata"].pop("creationTimestamp", None)
    (template["metadata"].get("annotations") or {}).pop(RESTARTED_AT, None)  # kubectl's, not ours
    return template


def _file(templates: Iterable[Object], configs: Mapping[str, str]) -> str:
    """The run file that kept templates mount; empty where its ConfigMap is not there."""
    texts = (configs.get(pods.run_config_of(each)) for each in templates)
    return next(filter(None, texts), "")


def same_but_for_length(one: str, other: str) -> bool:
    found = [json.loads(text) for text in (one, other)]
    return bool(found[0] | _length(one) == found[1] | _length(one))


def _length(text: str) -> dict[str, int | None]:
    document = json.loads(text)
    return {name: document.get(name) for name in LENGTH}


def with_present(text: str, job: Job) -> str:
    """A run file's text with the job's present length, regions and learners, and nothing else."""
    document = json.loads(text) | {name: getattr(job.spec, name) for name in LENGTH}
    known = {each["name"]: each for each in document.get("regions", [])}
    document["regions"] = [
        {**known.get(each.name, {}), "name": each.name, "learners": each.learners}
        for each in job.spec.regions
    ]
    return json.dumps(document, indent=2) + "\n"


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
