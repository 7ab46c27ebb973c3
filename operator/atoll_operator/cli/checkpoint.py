"""`atoll checkpoint`: one more checkpoint of a run, as soon as its shards have taken it."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.api.status.job_status import Status
from atoll_operator.cli.lifecycle import RunFolder
from atoll_operator.cli.run_or_job import Context, Namespace, Which, folder_of
from atoll_operator.local.last_status import read_status
from atoll_operator.local.run_files import STORES_FOLDER
from atoll_protos.errors import AwayError, SpecError

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
    """The URL of a whole checkpoint of this step, or of a later one."""
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
