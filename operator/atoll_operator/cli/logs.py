"""`atoll logs`: what the processes of a run have written, wherever it runs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.cli.run_or_job import Context, Namespace, Token, Which, folder_or_copy
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
    token: Token = "",
    namespace: Namespace = "",
    context: Context = "",
) -> None:
    """Show what the processes of a run have written.

    A folder that holds a run is taken as that; any other name is a job's, and so is every name
    that comes with --namespace or --context. HOST:PORT has the processes of the machine of `atoll
    serve`; the log of a learner is in the state folder of its machine. Lines begin with their
    process if there are several.
    """
    colours: dict[str, str] = {}
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        for name, line in _lines(which, process, tail, follow, (token, namespace, context)):
            prefix = ""
            if name != process:
                colour = colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
                prefix = f"[{name}] "
                prefix = typer.style(prefix, fg=colour) if coloured else prefix
            typer.echo(prefix + line)
    except KeyboardInterrupt:
        raise typer.Exit(RunResult.INTERRUPTED) from None


def _lines(
    which: str, process: str, tail: int | None, follow: bool, where: tuple[str, str, str]
) -> Iterator[tuple[str, str]]:
    """`where`: token, namespace and context."""
    token, namespace, context = where
    with folder_or_copy(
        which,
        "logs",
        token=token,
        namespace=namespace,
        context=context,
        follow=follow,
        tail=tail,
    ) as folder:
        if folder is not None:
            yield from files.lines(folder, process, tail=tail, follow=follow)
            return
    from atoll_operator.client.pod_logs import connect  # noqa: PLC0415 - slow to import

    yield from connect(which, namespace, context).lines(process, tail=tail, follow=follow)
