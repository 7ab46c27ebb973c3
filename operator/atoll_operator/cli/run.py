"""`atoll run`: trains on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.api import support
from atoll_operator.cli.reading import read_job
from atoll_operator.local.live import Output


def run(
    file: Annotated[Path, typer.Argument(help="File with a DecoupledTrainingJob.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for everything the run writes.")],
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of the manifest for this run, as in --set spec.steps=100."
            " The value is YAML, so text that looks like a number needs quotes:"
            " --set spec.sync.outer.momentum='\"0.5\"'. Lists are set as a whole. Repeatable.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that the folder holds.")
    ] = False,
    output: Annotated[
        Output, typer.Option("--output", help="What to show; without a terminal, lines.")
    ] = Output.TABLE,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill a random process with SIGKILL every 20 s.")
    ] = False,
) -> None:
    """Train on this machine: learners and shards of the manifest run as processes."""
    from atoll_operator.local.run import train  # noqa: PLC0415 - only this verb needs gRPC

    job = read_job(file, tuple(change or ()))
    refused = support.on_this_machine(job)
    if refused is not None:
        raise refused
    raise typer.Exit(train(job, out.resolve(), resume=resume, output=output, chaos=chaos))
