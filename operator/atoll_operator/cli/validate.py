"""`atoll validate`: checks a manifest without a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.api.job import parsing, unsupported
from atoll_operator.cli import template_check
from atoll_operator.cli.manifest_file import checked, read_text
from atoll_operator.local.planning import process_plan, run_manifest
from atoll_operator.local.supervision import startable
from atoll_protos.errors import SpecError


def validate(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
) -> None:
    """Check a manifest without a cluster."""
    document = parsing.document_in(read_text(file))
    job = checked(document)
    refused = unsupported.nowhere(job) or unsupported.evaluator_of_another_model(job)
    if refused is not None:
        raise refused
    template_check.check(job)
    hosts = job.spec.learner.hosts
    of_hosts = f" of {hosts} hosts" if hosts > 1 else ""
    typer.echo(f"{file}: {job.name}, {job.spec.learners} learners{of_hosts}: valid")
    refused = unsupported.on_a_cluster(job)
    if refused is not None:
        typer.echo(f"For `atoll run` only; a cluster does not accept it: {refused}")
    here = checked(run_manifest.with_folders(document, file.resolve().parent))
    try:
        startable.check_startable(process_plan.processes(here, Path("."), (), {}, new=True))
    except SpecError as error:
        typer.echo(f"`atoll run` cannot start it on this machine: {error}")
