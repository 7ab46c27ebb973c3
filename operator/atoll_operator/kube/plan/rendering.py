"""What running pods were rendered from, and how long that stays: an upgrade restarts nobody.

A pod template is rendered from three things: what the user wrote in the job, what this install adds
(its default images), and how this version of the operator writes it all down. A change of the first
is an edit, and its author expects restarts. A change of the other two is an upgrade of the
operator, whose author does not think of the jobs at all; a new image may even speak another
protocol than the shards of a run. So a template stays, word for word, until the user edits the job.

The note. Each workload keeps the template as it was rendered in an annotation of its own
(Annotation.RENDERED), with what it was rendered for:

    generation  of the job, when its inputs were last compared
    inputs      hash of what the user wrote that the template may depend on
    rendered    generation of the job for which the template was rendered
    images      the default images of the install at that time
    template    without lost nodes, which come and go; null where the note would be too long for
                an annotation: the live template then stands for it

A field that this version does not know is a later one's: it stays for as long as the template does.

It stands at the workload and not in the job's status, because a status can be lost and a workload
without its template cannot; it is written in the same call as the template. The live template is no
substitute: somebody may have changed it, and then the note says what it has to be (`drift`).

What is an edit. `inputs` leaves out what restarts nobody: the numbers of learners, which regions
there are, the length, suspend, deadlines, what to do about lost nodes, and how other clusters reach
the shards. It is compared only when the job's generation has changed, which the API server counts
up for an edit and for nothing else. With the same generation another hash means another way of
hashing, or defaults of another CRD: the note then gets the new hash and the template stays.

All or nothing. An edit of anything renders all workloads of the job again, so that no run is made
of parts of two versions. Workloads get their templates one after the other; `rendered` says which
of them have, and the later ones take the images that the earlier ones have noted, whatever has
happened to the operator in between. Where the new template equals the old one nothing restarts.

When nothing of a job runs, a rendering costs nothing: a job that starts or is resumed without any
pod gets the present one. A suspended job whose shards stay keeps theirs.

How the processes of a run talk, over TLS or in plain text, is not a matter of a template alone: a
shard serves in one way, and a learner of the other cannot join. So a run goes on as it began
(`speaks_tls`), whatever is edited and rendered again. `spec.syncer.tls` comes into force when the
job starts without any pod; until then SpecDrift says what differs.

The run file is rendered, too. The ConfigMap that kept templates name stays in use. For another
number of learners, or another length, that of learners is changed in that one place, so that the
file is still of the version whose processes read it. That of shards keeps the length with which it
was made, whatever else is rendered again, because they read the present one from a file of its own
(`configs.slots_map`). Shards of a version that did not are restarted for another length.

Workloads of a version that wrote no notes: their live template is the note, if the job has not been
edited since that version's last pass.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll_operator.api.spec import Job, Spec
from atoll_operator.kube.names import (
    SHARD_ROLE,
    Annotation,
    evaluator_name,
    learner_sets,
    shard_name,
)
from atoll_operator.kube.objects import RESTARTED_AT
from atoll_operator.kube.observation import Object, Raw
from atoll_operator.kube.plan import pods
from atoll_operator.kube.plan.kept import Kept
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.settings import Settings
from atoll_protos.names import Label

RESTARTS_NOBODY = {"regions", "steps", "tokens", "suspend", "managedBy", "failure",
                   "ttlSecondsAfterFinished", "activeDeadlineSeconds"}  # fmt: skip
LENGTH = ("steps", "tokens")
OF_A_REGION = {"podOverrides", "nodes"}
NOTE_BYTES_MAX = 240_000  # of the 262,144 that all annotations of an object may have
NOTES_MAX = 2_000  # that are kept as they were parsed, of some 10 kB each
JOBS_MAX = 2_000  # of which `inputs` are kept
NEVER = 0  # `rendered` of a template that a version without notes has made


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a workload's template was rendered for, as the module describes."""

    generation: int
    rendered: int
    inputs: str
    images: Mapping[str, str]  # by program: worker, syncer
    template: Object
    more: Mapping[str, Any] = field(default_factory=dict)  # what only a later version knows
    text: str | None = field(default=None, compare=False)  # that it was read from

    def to_text(self) -> str:
        """The annotation."""
        if self.text is not None:
            return self.text
        document = {**self.more, **{name: getattr(self, name) for name in NOTED}}
        text = _with_sum(document)
        return text if len(text) <= NOTE_BYTES_MAX else _with_sum({**document, "template": None})


_INPUTS: Kept[dict[str, str]] = Kept(JOBS_MAX)
NOTED = ("generation", "rendered", "inputs", "images", "template")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A run file as the text of a ConfigMap, and the hash that its pods carry."""

    text: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderings:
    """What of earlier renderings one pass keeps; by default nothing, as for a new job."""

    generation: int = 1  # of the job, now
    rendered: int = 1  # of the job, that all templates are to be rendered for
    images: Mapping[str, str] = field(default_factory=dict)  # in place of the install's
    kept: Mapping[str, Note] = field(default_factory=dict)  # by workload
    inputs: Mapping[str, str] = field(default_factory=dict)  # by workload: hash of the job's
    learners_file: RunConfig | None = None  # None: made from the job
    shards_file: RunConfig | None = None
    present_shards_file: RunConfig | None = None  # kept or not, of shards that read the length
    tls: bool | None = None  # how the processes talk; None: as the manifest says

    def settings(self, install: Settings) -> Settings:
        """The settings of the install, with the images of this run."""
        worker = self.images.get("worker") or install.worker_image
        syncer = self.images.get("syncer") or install.syncer_image
        return replace(install, worker_image=worker, syncer_image=syncer)

    def note(self, name: str, template: Object, hashed: str, install: Settings) -> Note:
        """What a workload notes of a template, which excludes no nodes; `hashed`: its `inputs`."""
        images = self.settings(install)
        found = Note(
            generation=self.generation,
            rendered=self.rendered,
            inputs=hashed,
            images={"worker": images.worker_image, "syncer": images.syncer_image},
            template=template,
        )
        kept = self.kept.get(name)
        if kept is None:
            return found
        found = replace(found, more=kept.more)
        return kept if kept == found else found


def decide(
    job: Job, generation: int, workloads: Iterable[Raw], configs: Mapping[str, str],
    running: Running, *, observed: int, home: bool = True,
) -> Renderings:  # fmt: skip
    """What to keep. `workloads` are the job's live ones, raw, `configs` texts of run files by name.

    `observed`: the generation that the job's status was last written for. `home`: the syncer runs
    in this cluster.
    """
    live = {each["metadata"]["name"]: each for each in workloads}
    regions = learner_sets(job)
    shards = [shard_name(job.name, number) for number in range(job.spec.syncer.shards)]
    of_regions = inputs(job, home=home)
    hashes = {name: of_regions[region] for name, region in regions.items()}
    hashes |= dict.fromkeys([*shards, evaluator_name(job.name)], of_regions[""])
    at_rest = not any(_replicas(each) for each in live.values())
    tls = None if at_rest else speaks_tls(live.values())
    fresh = Renderings(generation=generation, rendered=generation, inputs=hashes, tls=tls)
    if at_rest and (running.learners or running.shards):
        return fresh
    notes: dict[str, Note] = {}
    for name, each in live.items():
        if name in hashes:
            note = read(each) or _of_live(each, generation, observed, hashes[name])
            if note is not None:
                notes[name] = note
    if not notes:
        return fresh
    edited = any(
        note.generation != generation and note.inputs != hashes[name]
        for name, note in notes.items()
    )
    of_shards = [note.template for name, note in notes.items() if name in shards]
    present = _file(of_shards, configs)
    if present is not None and not all(map(pods.reads_length, of_shards)):
        edited |= _length(present.text) != {name: getattr(job.spec, name) for name in LENGTH}
        present = None
    rendered = generation if edited else max(note.rendered for note in notes.values())
    kept = {name: note for name, note in notes.items() if note.rendered == rendered}
    templates = {name: note.template for name, note in kept.items()}
    images: dict[str, str] = {}
    for note in kept.values():
        images |= note.images
    of_learners = _file([templates[name] for name in regions if name in templates], configs)
    if of_learners is not None:
        of_learners = RunConfig(text=with_present(of_learners.text, job), hash=of_learners.hash)
    return Renderings(
        generation=generation,
        rendered=rendered,
        images=images,
        kept=kept,
        inputs=hashes,
        learners_file=of_learners,
        shards_file=_file([templates[name] for name in shards if name in templates], configs),
        present_shards_file=present,
        tls=tls,
    )


def speaks_tls(workloads: Iterable[Raw]) -> bool | None:
    """Whether the processes of a job talk over TLS; None: it has no workloads.

    Those that run come first, and of them shards: they decide what is spoken. The pods of one that
    has been scaled to nothing may still be ending.
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
    return (workload["metadata"].get("labels") or {}).get(Label.ROLE) == SHARD_ROLE


def inputs(job: Job, *, home: bool = True) -> dict[str, str]:
    """Hash of what the user wrote that templates depend on: of learners by region.

    Under an empty name: of shards and evaluator. A field that has its default is as good as absent:
    the CRD of another version may have stored it, and the next patch takes it away. How other
    clusters reach the shards is nothing to the pods of their `home`.
    """
    return _INPUTS.get(job.uid, (job.spec, home), lambda: _inputs(job.spec, home=home))


def _inputs(given: Spec, *, home: bool) -> dict[str, str]:
    spec = given.model_dump(mode="json", by_alias=True, exclude_defaults=True)
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


def read(workload: Raw) -> Note | None:
    """The note of a live workload; None: there is none, or somebody has changed it."""
    text = (workload["metadata"].get("annotations") or {}).get(Annotation.RENDERED)
    note = _parsed(text) if text else None
    if note is None or note.template:
        return note
    return replace(note, template=_live_template(workload))


@functools.lru_cache(maxsize=NOTES_MAX)  # each is read in every pass
def _parsed(text: str) -> Note | None:
    """The note, of which the sum is over all fields, also those that only a later version knows."""
    try:
        document = json.loads(text)
        noted = document.pop("sum")
        if noted != digest(document)[:16]:
            return None
        values = {name: document.pop(name) for name in NOTED}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Note(**{**values, "template": values["template"] or {}}, more=document, text=text)


def _with_sum(document: Mapping[str, Any]) -> str:
    """A note's text, by which `_parsed` sees that nobody has changed it."""
    return json.dumps({**document, "sum": digest(document)[:16]}, separators=(",", ":"))


def _of_live(workload: Raw, generation: int, observed: int, hashed: str) -> Note | None:
    """The note that a version without notes would have written; None: the job was edited since."""
    metadata, spec = workload["metadata"], workload.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    noted = Annotation.RENDERED in annotations  # but not as it was written
    if noted or Annotation.APPLIED not in annotations or generation != observed:
        return None
    if not spec.get("replicas"):
        return None
    template = _live_template(workload)
    role = (template["metadata"].get("labels") or {}).get(Label.ROLE)
    program = "syncer" if role == SHARD_ROLE else "worker"
    image = template["spec"]["containers"][0].get("image", "")
    return Note(
        generation=generation, rendered=NEVER, inputs=hashed, images={program: image},
        template=template,
    )  # fmt: skip


def _live_template(workload: Raw) -> Object:
    """The template that a workload has now, without what is not of its rendering."""
    template = pods.without_exclusions(workload["spec"]["template"])
    template["metadata"].pop("creationTimestamp", None)
    (template["metadata"].get("annotations") or {}).pop(RESTARTED_AT, None)  # kubectl's, not ours
    return template


def _file(templates: Iterable[Object], configs: Mapping[str, str]) -> RunConfig | None:
    """The run file that kept templates mount, if its ConfigMap is there."""
    for template in templates:
        text = configs.get(pods.run_config_of(template))
        if text is not None:
            annotations = template["metadata"].get("annotations") or {}
            return RunConfig(text=text, hash=annotations.get(Annotation.RUN_HASH, ""))
    return None


def same_but_for_length(one: str, other: str) -> bool:
    """Whether two run files' texts say the same but for the length of the job."""
    found = [json.loads(text) for text in (one, other)]
    return bool(found[0] | _length(one) == found[1] | _length(one))


def _length(text: str) -> dict[str, int | None]:
    document = json.loads(text)
    return {name: document.get(name) for name in LENGTH}


_PRESENT: Kept[str] = Kept(JOBS_MAX)


def with_present(text: str, job: Job) -> str:
    """A run file's text with the job's present length, regions and learners, and nothing else."""
    return _PRESENT.get(job.uid, (text, job.spec), lambda: _with_present(text, job))


def _with_present(text: str, job: Job) -> str:
    document = json.loads(text) | {name: getattr(job.spec, name) for name in LENGTH}
    known = {each["name"]: each for each in document.get("regions", [])}
    document["regions"] = [
        {**known.get(each.name, {}), "name": each.name, "learners": each.learners}
        for each in job.spec.regions
    ]
    return json.dumps(document, indent=2) + "\n"


def digest(value: Any) -> str:
    """sha256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
