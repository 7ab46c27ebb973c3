"""`atoll logs`: what the processes of a run on this machine have written."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.cli.run_or_job import FolderArgument, run_folder
from atoll_operator.local import run_folder as files
from atoll_operator.local.show.run_summary import RunResult

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def _of_folder(context: typer.Context, incomplete: str) -> list[str]:
    known = files.processes_of(Path(context.params.get("which") or ""))
    return [name for name in known if name.startswith(incomplete)]


def logs(
    which: FolderArgument,
    process: Annotated[
        str,
        typer.Argument(
            metavar="[PROCESS]",
            help="A slot, SLOT-HOST, shard-0, or evaluator.",
            autocompletion=_of_folder,
        ),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with what comes, through restarts.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Last lines of each process only.", show_default="all")
    ] = None,
) -> None:
    """Show what the processes of a run have written.

    The log of a learner of `atoll join` is in the state folder of its machine. Lines begin with
    their process if there are several.
    """
    colours: dict[str, str] = {}
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        for name, line in files.lines(run_folder(which), process, tail=tail, follow=follow):
            prefix = ""
            if name != process:
                colour = colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
                prefix = f"[{name}] "
                prefix = typer.style(prefix, fg=colour) if coloured else prefix
            typer.echo(prefix + line)
    except KeyboardInterrupt:
        raise typer.Exit(RunResult.INTERRUPTED) from None
