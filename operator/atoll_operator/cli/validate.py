"""`atoll validate`: checks a manifest without a cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer

from atoll_operator.api.job import parsing
from atoll_operator.api.job.spec import Job
from atoll_operator.local import process_plan, run_manifest, startable
from atoll_protos.errors import SpecError


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), f"cannot be read ({error})", "give a readable file") from error


def read_job(file: Path, changes: tuple[str, ...] = ()) -> Job:
    """Read the job in a file, checked as far as any executor needs; raises SpecError."""
    return checked(parsing.document_in(read_text(file), changes))


def checked(document: dict[str, Any]) -> Job:
    job = parsing.from_object(document)
    if (refused := parsing.nowhere(job)) is not None:
        raise refused
    return job


def validate(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
) -> None:
    """Check a manifest without a cluster."""
    document = parsing.document_in(read_text(file))
    job = checked(document)
    if (refused := parsing.evaluator_of_another_model(job)) is not None:
        raise refused
    hosts = job.spec.learner.hosts
    of_hosts = f" of {hosts} hosts" if hosts > 1 else ""
    refused = parsing.on_a_cluster(job)
    valid = "valid" if refused is None else "valid for `atoll run` only"
    typer.echo(f"{file}: {job.name}, {job.spec.learners} learners{of_hosts}: {valid}")
    if refused is not None:
        typer.echo(f"A cluster does not accept it: {refused}")
    here = checked(run_manifest.with_folders(document, file.resolve().parent))
    try:
        startable.check_startable(process_plan.processes(here, Path("."), (), {}, new=True))
    except SpecError as error:
        typer.echo(f"`atoll run` cannot start it on this machine: {error}")
