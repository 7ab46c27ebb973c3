"""The manifest of a run: made for a script, with this machine's folders, as its folder keeps it.

All work on the checked document, because what a run folder keeps is a manifest that a person can
read, change and apply, not the job with all its defaults.

What a person changes of a run while it runs, as `kubectl edit` changes a job of a cluster.

The manifest in the run folder says what the run is to be. `edit` checks a change and writes it
there, whether something runs or not. The `atoll run` of the folder looks at the file in each pass
and checks it again, since anybody may have written it, before its processes follow (`passes`).

What no edit may change is that of a cluster (`field_rules.FIXED`). While processes run, more is
fixed: what they were started with.
"""

import contextlib
import copy
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import yaml

from atoll_operator.api.job import field_rules, parsing
from atoll_operator.api.job.fields import Model
from atoll_operator.api.job.parsing import DASHES, LAUNCHER, has_launcher, is_launched, within
from atoll_operator.api.job.process_inputs import TRAIN, run_file
from atoll_operator.api.job.spec import API_VERSION, KIND, Job
from atoll_operator.local import run_folder
from atoll_operator.local.gpus import RESOURCE
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import LENGTH_FILE, MANIFEST_FILE, shown, write_whole
from atoll_protos.environment import Torchrun
from atoll_protos.errors import SpecError
from atoll_protos.job import schedule

Document = dict[str, Any]

NAME_CHARACTERS_MAX = 30  # of a script's job: names of objects join it to those of regions
REGION = "local"  # of a script's learners when no regions are named
HEADER = "# What `atoll run` has trained in this folder"
NOTES = """
# Train it again:  atoll run {file}
# In a cluster:    give the learner's container an image that has Atoll and the script, make
#                  workingDir its folder there, name the cluster's regions, and kubectl apply.
"""


def of_script(
    script: Path,
    arguments: Sequence[str],
    learners: int | None,
    steps: int | None,
    regions: Sequence[str],
) -> Document:
    """Build a manifest whose learners, over the regions, run the script. Raises SpecError."""
    if not script.is_file():
        raise SpecError(str(script), "is not there", "give the path of a script or a manifest")
    if steps is None:
        raise SpecError("--steps", "is missing", "give the length of the training, as --steps 400")
    names = list(regions) or [REGION]
    count = learners or (len(regions) or 2)
    if count < len(names):
        problem = f"{count} learners cannot be in {len(names)} regions"
        raise SpecError("--learners", problem, "give at least one learner for each region")
    container: Document = {"name": "learner", "command": ["python", str(script)]}
    if arguments:
        container["args"] = list(arguments)
    spread = [
        {"name": name, "learners": len(range(number, count, len(names)))}
        for number, name in enumerate(names)
    ]
    learner = {"template": {"spec": {"containers": [container]}}}
    name = re.sub("[^a-z0-9]+", "-", script.stem.lower()).strip("-")
    metadata = {"name": name[:NAME_CHARACTERS_MAX].strip("-") or "script"}
    spec = {"steps": steps, "learner": learner, "regions": spread}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def with_gpus(document: Document, count: int) -> Document:
    """Every learner asks for so many GPUs; 0: it sees none."""
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    _limit(_learner(spec), count)
    for region in spec["regions"]:
        own = region.get("podOverrides") or {}
        if own.get("resources"):
            _limit(own, count)
    return changed


def with_processes(document: Document, count: int) -> Document:
    """Every learner becomes so many processes of its command; raises SpecError if it cannot."""
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    container = _learner(spec)
    overrides = [region.get("podOverrides") or {} for region in spec["regions"]]
    for region, own in zip(spec["regions"], overrides, strict=True):
        if own.get("command"):
            field = f"spec.regions[{region['name']}].podOverrides"
            own["command"] = launched(own["command"], count, field)
        if own.get("env"):
            own["env"] = _without_number(own)
    given = container.get("command") or []
    used = given or not all(own.get("command") for own in overrides)
    if used and (words := launched(given, count, "spec.learner.template")):
        container["command"] = words
    number = {"name": Torchrun.PROCESSES, "value": str(count)}
    container["env"] = [*_without_number(container), number]
    return changed


def launched(command: Sequence[str], count: int, field: str) -> list[str]:
    """Return the command for `count` processes; SpecError for another launcher or a number."""
    flag, words = "--processes-per-learner", list(command)
    if is_launched(words):
        options = words[: len(words) - len(within(words))]
        if any(word.replace("_", "-").startswith("--nproc") for word in options):
            problem = f"the command of {field} has --nproc-per-node itself"
            raise SpecError(flag, problem, "leave one of them out")
        return words
    if count == 1:
        return words
    if has_launcher(words):
        problem = f"the command of {field} has a launcher of its own, {words[0]}"
        remedy = "put this in its place: command: [atoll-worker, launch, --, train.py]"
        raise SpecError(flag, problem, remedy)
    return [*LAUNCHER, DASHES, *(words or ("python3", *TRAIN))]


def _without_number(container: Document) -> list[Document]:
    return [dict(x) for x in container.get("env") or () if x.get("name") != Torchrun.PROCESSES]


def with_folders(document: Document, folder: Path) -> Document:
    """Make relative working folders absolute; what has a command or arguments runs in `folder`."""
    changed = copy.deepcopy(document)
    spec = changed["spec"]
    overrides = [region.get("podOverrides") or {} for region in spec["regions"]]
    named = any(override.get("command") or override.get("args") for override in overrides)
    if named:
        _learner(spec)
    for role in ("learner", "evaluator"):
        template = (spec.get(role) or {}).get("template") or {}
        for container in ((template.get("spec") or {}).get("containers") or [])[:1]:
            if named or {"command", "args", "workingDir"} & container.keys():
                container["workingDir"] = str(folder / (container.get("workingDir") or ""))
        named = False
    return changed


def with_command(document: Document, command: Sequence[str], folder: Path) -> Document:
    """Let the learners run these words in `folder`, as if the manifest named them."""
    changed = copy.deepcopy(document)
    container = _learner(changed["spec"])
    container |= {"command": with_interpreter(command), "args": [], "workingDir": str(folder)}
    return changed


def with_interpreter(command: Sequence[str]) -> list[str]:
    """Put Python before a script alone."""
    return ["python", *command] if command[0].endswith(".py") else [*command]


def kept_manifest(text: str, document: Document, command: Sequence[str], out: Path) -> str:
    """manifest.yaml of a run folder: `text`, comments and all, with `document` for its job."""
    text = with_document(text, document)
    if text.startswith(HEADER):
        return text
    ran = " ".join(shlex.join(["atoll", "run", *command]).splitlines())
    return f"{HEADER}:\n#   {ran}{NOTES.format(file=out / 'manifest.yaml')}{text}"


def with_document(text: str, document: Document) -> str:
    """Return the text with this document for its job; the lines of comment at its head stay."""
    documents = [part for part in yaml.safe_load_all(text) if part is not None]
    if document in documents:
        return text
    mine = [part.get("kind") == KIND for part in documents]
    documents[mine.index(True) if any(mine) else 0] = document
    head = takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return "".join(head) + yaml.safe_dump_all(documents, sort_keys=False, width=100)


def default_out(name: str, now: float) -> Path:
    """Return a new run folder below the current one; `now` is in Unix seconds."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    folder = Path("runs") / f"{name}-{moment}"
    number = 2
    while os.path.lexists(folder):
        folder = folder.with_name(f"{name}-{moment}-{number}")
        number += 1
    return folder


def _learner(spec: Document) -> Document:
    place = _made(spec, "learner", "template", "spec")
    place["containers"] = place.get("containers") or [{"name": "learner"}]
    container: Document = place["containers"][0]
    return container


def _limit(container: Document, count: int) -> None:
    _made(container, "resources", "limits")[RESOURCE] = count


def _made(place: Document, *keys: str) -> Document:
    for key in keys:
        place[key] = place.get(key) or {}
        place = place[key]
    return place


# What follows without a new start of any process that stays.
FREE: Final = frozenset(
    {
        "spec.suspend",
        "spec.steps",
        "spec.tokens",
        "spec.regions[].learners",
        "spec.regions[].tokensPerStep",
        "spec.syncer.startSeconds",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The job before and after an edit, and whether an `atoll run` follows it now."""

    before: Job
    after: Job
    runs: bool


def edit(
    out: Path, changes: Sequence[str], also: Callable[[Job], None] = lambda after: None
) -> Edited:
    """Change the manifest of a run folder by fields such as `spec.steps=100`; raises SpecError.

    With an `atoll run` in the folder only what it can follow may change. `also` raises SpecError
    for what is wrong with the job as it is to be.
    """
    with run_folder.editing(out):
        before, text = job_of(out), _read(out / MANIFEST_FILE)
        document, after = _job_in(text, changes)
        runs = run_folder.is_run(out)
        (check if runs else field_rules.check_edit)(before, after)
        also(after)
        if after != before:
            try:
                write_whole(out / MANIFEST_FILE, with_document(text, document))
            except OSError as error:
                problem = f"cannot be written to ({error.strerror})"
                remedy = "make room, or let this user write"
                raise SpecError(str(out), problem, remedy) from error
    return Edited(before=before, after=after, runs=runs)


def job_of(out: Path) -> Job:
    """By the manifest of a run folder; raises SpecError."""
    return _job_in(_read(out / MANIFEST_FILE))[1]


def differences(before: Job, after: Job) -> list[str]:
    """Of learners and length, in words."""
    lines = []
    had = {region.name: region.learners for region in before.spec.regions}
    for new in after.spec.regions:
        known = had.pop(new.name, None)
        if known is None:
            lines.append(f"{new.name} is a new region; its learners: {new.learners}")
        elif known != new.learners:
            lines.append(f"{new.name} has {new.learners} learners, it had {known}")
    lines += [f"{name} is no region any more" for name in had]
    for field in ("steps", "tokens"):
        old_length, new_length = getattr(before.spec, field), getattr(after.spec, field)
        if old_length != new_length:
            lines.append(f"it is {new_length:,} {field} long, it was {old_length:,}")
    return lines


def check(before: Job, after: Job) -> None:
    """Raise SpecError for what an `atoll run` cannot change while it runs the job."""
    field_rules.check_edit(before, after)
    for field, place in _fields_that_differ(before.spec, after.spec, "spec"):
        if field not in FREE:
            problem = "cannot change while `atoll run` runs the job"
            remedy = "stop it with Ctrl-C, change it, and start it again with this folder"
            raise SpecError(place, problem, remedy)


@dataclass(slots=True, kw_only=True)
class ManifestInUse:
    """The manifest of a run that runs. `plan` gives the processes of a job, by their names.

    `text` is what was looked at last, and `accepted` what the run follows.
    """

    out: Path
    text: str
    plan: Callable[[Job], list[Planned]]
    accepted: str = ""

    def __post_init__(self) -> None:
        self.accepted = self.accepted or self.text

    def changed(self) -> str | None:
        """Return what it says now, if that is something else; None also while it cannot be read."""
        with contextlib.suppress(SpecError):
            found = _read(self.out / MANIFEST_FILE)
            return None if found == self.text else found
        return None

    def job(self, running: Job, text: str) -> Job:
        """Return the job that runs, as this text changes it; raises SpecError."""
        _, before = _job_in(self.accepted)
        _, after = _job_in(text)
        check(before, after)
        own = {"checkpoint": running.spec.checkpoint}  # whose place is in the run folder
        return running.model_copy(update={"spec": after.spec.model_copy(update=own)})


def next_length(out: Path, steps: int | None, tokens: int | None) -> str:
    """Return a length file that every process takes for the newest (rule 27)."""
    revision = 0
    with contextlib.suppress(SpecError):  # there is none yet
        revision = schedule.read(_read(out / LENGTH_FILE)).revision
    return schedule.LengthFile(revision=revision + 1, steps=steps, tokens=tokens).to_json()


def _job_in(text: str, changes: Sequence[str] = ()) -> tuple[Document, Job]:
    document = parsing.document_in(text, tuple(changes))
    job = parsing.from_object(document)
    if (refused := parsing.on_this_machine(job)) is not None:
        raise refused
    run_file(job)
    return document, job


def _fields_that_differ(before: Model, after: Model, path: str) -> Iterator[tuple[str, str]]:
    """Yield the fields that differ, with [] in place of an entry's name, and with the name."""
    for name, known in type(before).model_fields.items():
        old, new, field = getattr(before, name), getattr(after, name), f"{path}.{known.alias}"
        if old == new:
            continue
        if isinstance(old, Model) and isinstance(new, Model):
            yield from _fields_that_differ(old, new, field)
        elif name == "regions":  # of those that come or go, nothing else runs
            stay = {region.name: region for region in new}
            for entry in (region for region in old if region.name in stay):
                for inner, _ in _fields_that_differ(entry, stay[entry.name], f"{field}[]"):
                    yield inner, inner.replace("[]", f"[{entry.name}]", 1)
        else:
            yield field, field


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "give the folder of a run"
        raise SpecError(shown(file), f"cannot be read ({error})", remedy) from error
