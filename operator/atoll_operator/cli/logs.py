"""`atoll logs`: what the processes of a run have written, in a run folder or in a cluster."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.cli.run_or_job import Context, Namespace, Which, folder_of
from atoll_operator.local.folder import log_files as files
from atoll_operator.local.show.run_summary import RunResult

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def _of_folder(context: typer.Context, incomplete: str) -> list[str]:
    known = files.processes_of(Path(context.params.get("which") or ""))
    return [name for name in known if name.startswith(incomplete)]


def logs(
    which: Which,
    process: Annotated[
        str,
        typer.Argument(
            metavar="[PROCESS]",
            help="A slot, shard-0, or evaluator; in a cluster SLOT-HOST is one host.",
            autocompletion=_of_folder,
        ),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with what comes, through restarts.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Last lines of each process only.", show_default="all")
    ] = None,
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Show what the processes of a run have written.

    A folder that holds a run is taken as that; any other name is a job's, and so is every name
    that comes with --namespace or --context. Lines begin with their process if there are several.
    """
    colours: dict[str, str] = {}
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        for name, line in _lines(which, process, tail, follow, namespace, context):
            prefix = ""
            if name != process:
                colour = colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
                prefix = f"[{name}] "
                prefix = typer.style(prefix, fg=colour) if coloured else prefix
            typer.echo(prefix + line)
    except KeyboardInterrupt:
        raise typer.Exit(RunResult.INTERRUPTED) from None


def _lines(
    which: str, process: str, tail: int | None, follow: bool, namespace: str, context: str
) -> Iterator[tuple[str, str]]:
    folder = folder_of(which, namespace, context)
    if folder is not None:
        return files.lines(folder, process, tail=tail, follow=follow)
    from atoll_operator.client.pod_logs import connect  # noqa: PLC0415 - slow to import

    return connect(which, namespace, context).lines(process, tail=tail, follow=follow)
