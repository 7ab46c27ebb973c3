"""`atoll validate`: checks a manifest without a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from atoll_operator import templates
from atoll_operator.api import support
from atoll_operator.cli.reading import read_job


def validate(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
) -> None:
    """Check a manifest without a cluster."""
    job = read_job(file)
    templates.check(job)
    typer.echo(f"{file}: {job.name}, {job.spec.learners} learners: valid")
    refused = support.on_a_cluster(job)
    if refused is not None:
        typer.echo(f"For `atoll run` only; a cluster does not accept it: {refused}")
