"""`atoll edit`, `suspend`, `resume`, `stop` and `delete`: what a person decides of a run.

All act on the manifest, that of a run folder or the object of a cluster, and whoever runs the job
follows.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll_operator.api.job import field_rules, parsing
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.job_status import Status
from atoll_operator.cli.run_or_job import (
    JOB_NAME,
    Context,
    JobArgument,
    Namespace,
    Which,
    folder_of,
)
from atoll_operator.local.folder.run_files import MACHINES_FOLDER, continued_by
from atoll_operator.local.folder.run_lock import is_run
from atoll_operator.local.planning import edits
from atoll_operator.local.progress.last_status import read_status
from atoll_operator.machines.server.register import Book
from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.client import JobClient

Learners = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGION=NUMBER", help="Number of learners in a region, as eu=3. Repeatable."
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Length of the training, in steps.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Length of the training, in tokens.")]


def edit(
    which: Which,
    learners: Learners = None,
    steps: Steps = None,
    tokens: Tokens = None,
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Change the learners or the length of a run, also while it trains.

    Learners come and go, and nobody else starts again. A run that is beyond a shorter length ends
    at once.
    """
    changes = [*map(_learners, learners or ())]
    changes += [f"spec.steps={steps}"] if steps else []
    changes += [f"spec.tokens={tokens}"] if tokens else []
    if not changes:
        remedy = "give --learners, --steps or --tokens"
        raise SpecError("atoll edit", "nothing is to change", remedy)
    _change(which, changes, namespace, context)


def suspend(which: Which, namespace: Namespace = "", context: Context = "") -> None:
    """End a run's learners and shards, and keep the run: `atoll resume` continues it."""
    _suspend(which, True, namespace, context)
    typer.echo(f"{which}: will suspend; `atoll resume {which}` continues its run")


def resume(which: Which, namespace: Namespace = "", context: Context = "") -> None:
    """Continue a suspended run from its last commits."""
    _suspend(which, False, namespace, context)
    typer.echo(f"{which}: will continue")


def stop(which: Which, namespace: Namespace = "", context: Context = "") -> None:
    """End a run where it is, as complete: its length becomes what it has trained.

    Every slice has its last round, and the model is exported.
    """
    folder = folder_of(which, namespace, context)
    if folder is not None:
        status, by_tokens = read_status(folder), edits.job_of(folder).spec.steps is None
    else:
        job = _client(which, namespace, context).get(which)
        status, by_tokens = job.status, "tokens" in job.manifest["spec"]
    reached = status.progress
    length = (reached.tokens if by_tokens else reached.step) if reached else 0
    field = "tokens" if by_tokens else "steps"
    changes = [f"spec.{field}={max(1, length)}", "spec.suspend=false"]
    _change(which, changes, namespace, context)
    typer.echo(f"{which}: will end, and export its model")


def delete(job: JobArgument, namespace: Namespace = "", context: Context = "") -> None:
    """Delete a job with all that it owns; volume claims stay unless the manifest says otherwise."""
    if JOB_NAME.fullmatch(job) is None:
        remedy = "give the name of a job in a cluster; Ctrl-C stops a run of `atoll run`"
        raise SpecError(job, "is not the name of a job", remedy)
    _client(job, namespace, context).delete(job)
    typer.echo(f"{job}: deleted")


def _learners(given: str) -> str:
    region, _, number = given.partition("=")
    if not (region and number.isdecimal()):
        raise SpecError(f"--learners {given}", "is no number of a region", "write it as eu=3")
    return f"spec.regions.{region}.learners={number}"


def _change(which: str, changes: Sequence[str], namespace: str, context: str) -> None:
    """Change the manifest, and say what is another. Raises SpecError for what may not change."""
    folder = folder_of(which, namespace, context)
    if folder is None:
        _change_job(which, changes, _client(which, namespace, context))
        return
    _must_not_be_complete(which, _status(folder))
    found = edits.edit(folder, changes, partial(_keeps_machines, folder))
    for line in edits.differences(found.before, found.after):
        typer.echo(f"{which}: {line}")
    if not found.runs:
        typer.echo(f"{which}: nothing runs in it now; `{continued_by(folder)}` continues so")


def _change_job(name: str, changes: Sequence[str], jobs: "JobClient") -> None:
    job = jobs.get(name)
    _must_not_be_complete(name, job.status)
    text = json.dumps(job.manifest)
    before = parsing.from_object(parsing.document_in(text), stored=True)
    document = parsing.document_in(text, tuple(changes))
    after = parsing.from_object(document, stored=True)
    field_rules.check_edit(before, after)
    fields = {change.split(".")[1].partition("=")[0] for change in changes}
    jobs.edit(job, {field: document["spec"][field] for field in fields})
    for line in edits.differences(before, after):
        typer.echo(f"{name}: {line}")


def _suspend(which: str, wanted: bool, namespace: str, context: str) -> None:
    folder = folder_of(which, namespace, context)
    if folder is None:  # also a job whose manifest is not accepted can be suspended
        jobs = _client(which, namespace, context)
        (jobs.suspend if wanted else jobs.resume)(which)
    elif is_run(folder):
        edits.edit(folder, [f"spec.suspend={str(wanted).lower()}"])
    else:
        remedy = f"`{continued_by(folder)}` continues it, unless it is complete"
        raise SpecError(which, "nothing runs in it now", remedy)


def _keeps_machines(folder: Path, after: Job) -> None:
    """Raise SpecError where a machine that has joined would have a slot that the job has not."""
    for each in Book(folder / MACHINES_FOLDER).read().machines:
        if gone := [slot for slot in each.slots if slot not in after.spec.slots]:
            problem = f"machine {each.name} has {', '.join(gone)}"
            remedy = f"first take the machine out: `atoll tokens {folder} --revoke {each.name}`"
            raise SpecError(f"spec.regions[{each.region}].learners", problem, remedy)


def _must_not_be_complete(which: str, status: Status | None) -> None:
    if status is not None and status.true_condition("Complete") is not None:
        reached = status.progress.step if status.progress else 0
        problem = f"is complete since step {reached}, and stays so"
        raise SpecError(which, problem, "begin a new one, with what it has left: --resume-from")


def _status(folder: Path) -> Status | None:
    """None: the run has written none yet."""
    try:
        return read_status(folder)
    except SpecError:
        return None


def _client(job: str, namespace: str, context: str) -> "JobClient":
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import

    return JobClient(namespace, context)
