"""`atoll suspend`, `resume` and `delete`: what a person decides of a job in a cluster."""

from typing import TYPE_CHECKING

import typer

from atoll_operator.cli.run_or_job import JOB_NAME, Context, JobArgument, Namespace
from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.client import JobClient


def suspend(job: JobArgument, namespace: Namespace = "", context: Context = "") -> None:
    """End a job's learners and shards, and keep its run: `atoll resume` continues it."""
    _client(job, namespace, context).suspend(job)
    typer.echo(f"{job}: will suspend; `atoll resume {job}` continues its run")


def resume(job: JobArgument, namespace: Namespace = "", context: Context = "") -> None:
    """Continue the run of a suspended job from its last commits."""
    _client(job, namespace, context).resume(job)
    typer.echo(f"{job}: will continue")


def delete(job: JobArgument, namespace: Namespace = "", context: Context = "") -> None:
    """Delete a job with all that it owns; volume claims stay unless the manifest says otherwise."""
    _client(job, namespace, context).delete(job)
    typer.echo(f"{job}: deleted")


def _client(job: str, namespace: str, context: str) -> "JobClient":
    if JOB_NAME.fullmatch(job) is None:
        remedy = "give the name of a job in a cluster; Ctrl-C stops a run of `atoll run`"
        raise SpecError(job, "is not the name of a job", remedy)
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import

    return JobClient(namespace, context)
