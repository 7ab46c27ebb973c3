"""`atoll validate`: checks a manifest without a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from atoll_operator import templates
from atoll_operator.api import manifest, support
from atoll_operator.cli.reading import checked, read_text
from atoll_operator.local import commands, manifests, plan
from atoll_protos.errors import SpecError


def validate(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
) -> None:
    """Check a manifest without a cluster."""
    document = manifest.document_in(read_text(file))
    job = checked(document)
    refused = support.nowhere(job) or support.evaluator_of_another_model(job)
    if refused is not None:
        raise refused
    templates.check(job)
    hosts = job.spec.learner.hosts
    of_hosts = f" of {hosts} hosts" if hosts > 1 else ""
    typer.echo(f"{file}: {job.name}, {job.spec.learners} learners{of_hosts}: valid")
    refused = support.on_a_cluster(job)
    if refused is not None:
        typer.echo(f"For `atoll run` only; a cluster does not accept it: {refused}")
    here = checked(manifests.with_folders(document, file.resolve().parent))
    ports = tuple(range(here.spec.syncer.shards))  # of a plan that is only looked at
    try:
        commands.check_startable(plan.processes(here, Path("."), ports, {}, new=True))
    except SpecError as error:
        typer.echo(f"`atoll run` cannot start it on this machine: {error}")
