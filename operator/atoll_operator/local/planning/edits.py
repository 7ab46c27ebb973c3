"""What a person changes of a run while it runs, as `kubectl edit` changes a job of a cluster.

The manifest in the run folder says what the run is to be. `edit` checks a change and writes it
there, whether something runs or not. The `atoll run` of the folder looks at the file in each pass
and checks it again, since anybody may have written it, before its processes follow (`passes`).

What no edit may change is that of a cluster (`field_rules.FIXED`). While processes run, more is
fixed: what they were started with.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.api.job import field_rules, parsing, unsupported
from atoll_operator.api.job.model_base import Model
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.local.folder import run_lock
from atoll_operator.local.folder.run_files import LENGTH_FILE, MANIFEST_FILE, shown, write_whole
from atoll_operator.local.planning import run_manifest
from atoll_operator.local.planning.process_plan import Planned
from atoll_operator.local.planning.run_manifest import Document
from atoll_protos.errors import SpecError
from atoll_protos.job import length

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
    with run_lock.editing(out):
        before, text = job_of(out), _read(out / MANIFEST_FILE)
        document, after = _job_in(text, changes)
        runs = run_lock.is_run(out)
        (check if runs else field_rules.check_edit)(before, after)
        also(after)
        if after != before:
            try:
                write_whole(out / MANIFEST_FILE, run_manifest.with_document(text, document))
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
    had = {each.name: each.learners for each in before.spec.regions}
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
        """What it says now, if that is something else; None also while it cannot be read."""
        with contextlib.suppress(SpecError):
            found = _read(self.out / MANIFEST_FILE)
            return None if found == self.text else found
        return None

    def job(self, running: Job, text: str) -> Job:
        """The job that runs, as this text changes it; raises SpecError."""
        _, before = _job_in(self.accepted)
        _, after = _job_in(text)
        check(before, after)
        own = {"checkpoint": running.spec.checkpoint}  # whose place is in the run folder
        return running.model_copy(update={"spec": after.spec.model_copy(update=own)})


def next_length(out: Path, steps: int | None, tokens: int | None) -> str:
    """The length file with a new length, which every process takes for the newest (rule 27)."""
    revision = 0
    with contextlib.suppress(SpecError):  # there is none yet
        revision = length.read(_read(out / LENGTH_FILE)).revision
    return length.LengthFile(revision=revision + 1, steps=steps, tokens=tokens).to_json()


def _job_in(text: str, changes: Sequence[str] = ()) -> tuple[Document, Job]:
    document = parsing.document_in(text, tuple(changes))
    job = parsing.from_object(document)
    if (refused := unsupported.on_this_machine(job)) is not None:
        raise refused
    run_file(job)
    return document, job


def _fields_that_differ(before: Model, after: Model, path: str) -> Iterator[tuple[str, str]]:
    """The fields that differ, with [] in place of an entry's name, and with the name."""
    for name, known in type(before).model_fields.items():
        old, new, field = getattr(before, name), getattr(after, name), f"{path}.{known.alias}"
        if old == new:
            continue
        if isinstance(old, Model) and isinstance(new, Model):
            yield from _fields_that_differ(old, new, field)
        elif name == "regions":  # of those that come or go, nothing else runs
            stay = {each.name: each for each in new}
            for one in (each for each in old if each.name in stay):
                for inner, _ in _fields_that_differ(one, stay[one.name], f"{field}[]"):
                    yield inner, inner.replace("[]", f"[{one.name}]", 1)
        else:
            yield field, field


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "give the folder of a run"
        raise SpecError(shown(file), f"cannot be read ({error})", remedy) from error
