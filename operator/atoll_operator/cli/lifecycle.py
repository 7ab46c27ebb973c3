"""`atoll edit`, `suspend`, `resume`, `stop` and `checkpoint`: what a person decides of a run.

The first four write the manifest of its folder, which `atoll run` and `atoll serve` follow.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.job_status import Status
from atoll_operator.cli.run_or_job import (
    Context,
    FolderArgument,
    Namespace,
    Which,
    folder_of,
    run_folder,
)
from atoll_operator.local import run_manifest
from atoll_operator.local.last_status import read_status
from atoll_operator.local.run_files import (
    ASKED_FILE,
    MACHINES_FOLDER,
    STORES_FOLDER,
    continued_by,
    write_whole,
)
from atoll_operator.local.run_folder import is_run
from atoll_operator.machines.server.register import Book, keeps_slots
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.names import REGION_PATTERN

Learners = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGION=NUMBER", help="Number of learners in a region, as eu=3. Repeatable."
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Length of the training, in steps.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Length of the training, in tokens.")]


def edit(
    which: FolderArgument,
    learners: Learners = None,
    steps: Steps = None,
    tokens: Tokens = None,
) -> None:
    """Change the learners or the length of a run, also while it trains.

    Learners come and go, and nobody else starts again. A run that is beyond a shorter length ends
    at once.
    """
    if not (learners or steps or tokens):
        remedy = "give --learners, --steps or --tokens"
        raise SpecError("atoll edit", "nothing is to change", remedy)
    numbers = dict(map(_learners, learners or ()))
    _say(which, _run(which).edit(numbers, steps, tokens))


def suspend(which: FolderArgument) -> None:
    """End a run's learners and shards, and keep the run: `atoll resume` continues it."""
    _run(which).suspend(True)
    typer.echo(f"{which}: will suspend; `atoll resume {which}` continues its run")


def resume(which: FolderArgument) -> None:
    """Continue a suspended run from its last commits."""
    _run(which).suspend(False)
    typer.echo(f"{which}: will continue")


def stop(which: FolderArgument) -> None:
    """End a run where it is, as complete: its length becomes what it has trained.

    Every slice has its last round, and the model is exported.
    """
    _say(which, _run(which).stop())
    typer.echo(f"{which}: will end, and export its model")


def _run(which: str) -> "RunFolder":
    return RunFolder(run_folder(which), which)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run in a folder of this machine; errors call it `name`. All methods raise SpecError."""

    folder: Path
    name: str

    def edit(self, learners: Mapping[str, int], steps: int | None, tokens: int | None) -> list[str]:
        """Return what is another now, in words; None and no region: as it is."""
        return self._edit(fields(learners, steps, tokens))

    def suspend(self, wanted: bool) -> None:
        if not is_run(self.folder):
            remedy = f"`{continued_by(self.folder)}` continues it, unless it is complete"
            raise SpecError(self.name, "nothing runs in it now", remedy)
        run_manifest.edit(self.folder, [f"spec.suspend={str(wanted).lower()}"])

    def stop(self) -> list[str]:
        by_tokens = run_manifest.job_of(self.folder).spec.steps is None
        return self._edit(ended_at(read_status(self.folder), by_tokens=by_tokens))

    def ask_checkpoint(self, step: int) -> None:
        """Of this step, or of a later one."""
        try:
            write_whole(self.folder / ASKED_FILE, f"{step}\n")
        except OSError as error:
            problem = f"cannot be written to ({error.strerror})"
            remedy = "make room, or let this user write"
            raise SpecError(str(self.folder), problem, remedy) from error

    def _edit(self, changes: list[str]) -> list[str]:
        must_not_be_complete(self.name, self._status())
        found = run_manifest.edit(self.folder, changes, self._keeps_machines)
        lines = run_manifest.differences(found.before, found.after)
        if not found.runs:
            again = f"`{continued_by(self.folder)}` continues so"
            lines.append(f"nothing runs in it now; {again}")
        return lines

    def _keeps_machines(self, after: Job) -> None:
        register = Book(self.folder / MACHINES_FOLDER).read()
        keeps_slots(register, after.spec.slots, str(self.folder))

    def _status(self) -> Status | None:
        """None: the run has written none yet."""
        try:
            return read_status(self.folder)
        except SpecError:
            return None


def fields(learners: Mapping[str, int], steps: int | None, tokens: int | None) -> list[str]:
    """Return an edit as fields of the manifest. Raises SpecError for what names no region."""
    for region in learners:
        if REGION_PATTERN.fullmatch(region) is None:  # a dot would lead to other fields
            raise SpecError("--learners", f"{region!r} is no region", "write it as eu=3")
    changes = [  # a new region is one with learners
        f"spec.regions.{'+' if number else ''}{name}.learners={number}"
        for name, number in learners.items()
    ]
    changes += [f"spec.steps={steps}"] if steps else []
    return changes + ([f"spec.tokens={tokens}"] if tokens else [])


def ended_at(status: Status, *, by_tokens: bool) -> list[str]:
    """Return the fields of a job whose length becomes what it has trained."""
    reached = status.progress
    length = (reached.tokens if by_tokens else reached.step) if reached else 0
    field = "tokens" if by_tokens else "steps"
    return [f"spec.{field}={max(1, length)}", "spec.suspend=false"]


def must_not_be_complete(name: str, status: Status | None) -> None:
    if status is not None and status.true_condition("Complete") is not None:
        reached = status.progress.step if status.progress else 0
        problem = f"is complete since step {reached}, and stays so"
        raise SpecError(name, problem, "begin a new one, with what it has left: --resume-from")


def _say(which: str, lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(f"{which}: {line}")


def _learners(given: str) -> tuple[str, int]:
    region, _, number = given.partition("=")
    if not (region and number.isdecimal()):
        raise SpecError(f"--learners {given}", "is no number of a region", "write it as eu=3")
    return region, int(number)


LOOK_SECONDS: Final = 0.5
Look = Callable[[], Status]
Ask = Callable[[int], object]  # for a checkpoint of this step, or of a later one


def checkpoint(
    which: Which,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait until it is whole.")
    ] = 600.0,
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Take a checkpoint of a run that trains, now, and say where it is when it is whole.

    Training does not wait. Each shard takes its part with its next commit.
    """
    look, ask = _found(which, namespace, context)
    status = look()
    _must_run(which, status)
    step = status.progress.step + 1 if status.progress else 1
    ask(step)
    typer.echo(_whole(which, look, step, timeout))


def _found(which: str, namespace: str, context: str) -> tuple[Look, Ask]:
    folder = folder_of(which, namespace, context)
    if folder is not None:
        return partial(read_status, folder), RunFolder(folder, which).ask_checkpoint
    return _of_job(which, namespace, context)


def _of_job(name: str, namespace: str, context: str) -> tuple[Look, Ask]:
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import

    jobs = JobClient(namespace, context)
    if not (jobs.get(name)["spec"].get("checkpoint") or {}).get("url"):
        remedy = "give a place that every shard reaches"
        raise SpecError("spec.checkpoint.url", f"is not given in the job {name}", remedy)
    return partial(jobs.status, name), partial(jobs.ask_checkpoint, name)


def _must_run(which: str, status: Status) -> None:
    for kind in ("Complete", "Failed", "Suspended"):
        if status.true_condition(kind) is not None:
            remedy = "take its model, or begin a new run with what it has left"
            if Path(which).is_dir():
                remedy += f": --resume-from {Path(which) / STORES_FOLDER}"
            raise SpecError(which, f"is {kind}, and takes no checkpoint", remedy)


def _whole(which: str, look: Look, step: int, seconds: float) -> str:
    """Return the URL of a whole checkpoint of this step, or of a later one."""
    ends = time.monotonic() + seconds
    while True:
        status = look()
        url = status.checkpoint or ""
        if url and int(url.rpartition("-")[2]) >= step:
            return url
        _must_run(which, status)
        if time.monotonic() >= ends:
            found = status.true_condition("Degraded")
            why = f": {found.reason}: {found.message}" if found else ""
            remedy = "it may be yet: see the status and the logs of the shards"
            problem = f"no checkpoint is whole after {seconds:g} s{why}"
            raise AwayError(which, problem, remedy)
        time.sleep(LOOK_SECONDS)
