"""`atoll status`: how a run stands, in a run folder, in a cluster or at an `atoll serve`."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll_operator.cli.run_or_job import Context, Namespace, Token, Which, folder_or_copy
from atoll_operator.local.folder.run_files import STATUS_FILE
from atoll_operator.local.progress import last_status
from atoll_operator.local.show.status_text import status_text
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import RunFile

if TYPE_CHECKING:
    from atoll_operator.client import TrainingJob

OPERATOR_SECONDS_MAX = 60.0  # an operator writes the progress of a job that trains every 10 s


def status(
    which: Which,
    as_json: Annotated[
        bool, typer.Option("--json", help="All of it, in the shape of the CRD's status.")
    ] = False,
    token: Token = "",
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Say how a run stands: its step, losses, learners, and what is wrong with it."""
    with folder_or_copy(which, "status", token=token, namespace=namespace, context=context) as out:
        if out is not None:
            _of_folder(out, as_json)
            return
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import
    from atoll_operator.client.reach import NEITHER  # noqa: PLC0415

    try:
        jobs = JobClient(namespace, context)
    except SpecError as error:
        if namespace or context:
            raise
        raise SpecError(which, f"is not a run folder, and {error.problem}", NEITHER) from error
    job = jobs.get(which)
    if as_json:
        typer.echo(json.dumps(job.status.to_object(), indent=2))
    else:
        typer.echo(of_job(job, time.time()))


def of_job(job: "TrainingJob", now: float) -> str:
    progress = job.status.progress
    age = 0.0
    if progress is not None and job.is_true("Progressing"):
        age = now - datetime.fromisoformat(progress.last_updated_time).timestamp()
    steps = job.manifest["spec"].get("steps")
    text = status_text(
        job.status, job.name, steps, age, writer="the operator", silent_seconds=OPERATOR_SECONDS_MAX
    )
    if job.status.conditions and not job.is_current:
        text += "\n  the operator has not looked at the last change of the manifest yet"
    elif not job.status.conditions:
        text += "\n  no operator has looked at it yet: is one installed for this namespace?"
    return text


def _of_folder(out: Path, as_json: bool) -> None:
    found = last_status.read_status(out)
    if as_json:
        typer.echo(json.dumps(found.to_object(), indent=2))
        return
    if not (out / "run.json").is_file():
        raise SpecError(str(out), "has no run.json", "give the folder of a run")
    age = time.time() - (out / STATUS_FILE).stat().st_mtime
    run = RunFile.from_json((out / "run.json").read_text(encoding="utf-8"))
    typer.echo(status_text(found, run.job, run.steps, age))
