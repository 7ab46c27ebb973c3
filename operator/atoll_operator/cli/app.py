"""The verbs of `atoll` under their names, `--version`, and what bad input looks like."""

import importlib.metadata
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from atoll_operator.cli.credentials import credentials
from atoll_operator.cli.export import export
from atoll_operator.cli.join import join
from atoll_operator.cli.lifecycle import checkpoint, edit, resume, stop, suspend
from atoll_operator.cli.plan import plan
from atoll_operator.cli.run import run
from atoll_operator.cli.serve import serve
from atoll_operator.cli.store import replay, store
from atoll_operator.cli.tokens import tokens
from atoll_operator.cli.validate import validate
from atoll_operator.cli.views import logs, status, top
from atoll_operator.local.show.live import echo
from atoll_operator.local.show.run_summary import RunResult
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.exits import ExitCode
from atoll_protos.logs import quiet_grpc
from atoll_protos.network.listening import raise_file_limit

PLUGIN = "kubectl atoll"
FILES_TOO = ":0"  # kubectl's word for: names of files fit as well

# Of click, or of the copy of it that newer versions of typer carry.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class WithScript(TyperCommand):
    """`atoll run`, `join`: of an unknown option they say where those of a script belong."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        script = next((word for word in args if word.endswith(".py")), None)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            option = getattr(error, "option_name", None)
            if script and option:
                more = f". Options of {script} come after two dashes: -- {option} ..."
                error.message = f"No such option: {option}{more}"  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train one model on learners in several regions, which merge their work as they go.",
)
VERBS = (
    *(serve, tokens, status, top, logs, export, checkpoint, replay),
    *(edit, suspend, resume, stop, credentials, validate, plan),
)
for verb_with_script in (run, join):
    app.command(cls=WithScript)(verb_with_script)
for verb in VERBS:
    app.command()(verb)
app.add_typer(store, name="store")


def main() -> None:
    program = Path(sys.argv[0]).name
    quiet_grpc()
    raise_file_limit()  # also of what `run` and `serve` start
    try:
        app(prog_name=PLUGIN if program == "kubectl-atoll" else None)
    except SpecError as error:
        echo(str(error), err=True)
        sys.exit(ExitCode.TRY_AGAIN if isinstance(error, AwayError) else RunResult.BAD_INPUT)
    except OSError as error:  # such as a full disk; its text names the file
        echo(f"atoll: {error}", err=True)
        sys.exit(RunResult.FAILED)
    finally:
        _drop_unread_output()


def _drop_unread_output() -> None:
    """Drop what nobody takes, for which Python would end with 120, not the command's code."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complete() -> None:
    """Offer words for `kubectl atoll ...`, as kubectl asks a plugin for them.

    kubectl gives the words so far, the last of which may be empty. It reads one offer a line, and a
    last line that says what else to offer.
    """
    *whole, begun = sys.argv[1:] or [""]
    words = shlex.join(["atoll", *whole]) + f" {begun}"
    os.environ |= {
        "_ATOLL_COMPLETE": "complete_fish",  # of all shells its format is that of kubectl
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": words,
    }
    try:
        app(prog_name="atoll")
    finally:
        typer.echo(FILES_TOO)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"atoll {importlib.metadata.version('atoll')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del version  # its callback has shown it
