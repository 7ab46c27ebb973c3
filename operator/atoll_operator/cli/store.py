"""`atoll store check` and `atoll replay`: programs of the syncer, which may not be installed."""

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from atoll_protos.errors import SpecError

store = typer.Typer(no_args_is_help=True)


@store.callback()
def _store() -> None:
    """Look at the place of the shards' state."""


@store.command()
def check(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="s3://BUCKET/PATH, gs://BUCKET/PATH or az://ACCOUNT/CONTAINER/PATH."
        ),
    ],
    endpoint: Annotated[
        str,
        typer.Option(metavar="URL", help="Where the store answers; left out, at the provider's."),
    ] = "",
) -> None:
    """Check that a bucket does what a shard needs of its store, and how fast it is.

    It uses the credentials of this process's environment, as the shards will use theirs, and
    removes all that it writes. Its exit code is 0 where all holds, 64 where the store cannot be
    used, and 75 where it does not answer or refuses the credentials.
    """
    words = [url, *(("--endpoint", endpoint) if endpoint else ())]
    raise typer.Exit(_run("atoll store check", "obstore", "storage.store_check", words))


def replay(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run.")],
) -> None:
    """Compute recorded merges again, and name the first whose bits differ.

    A run is recorded with `atoll run --record`. The exit code is 0 where all versions have equal
    bits, 1 where one has not, 64 where there is no record, and 75 where it cannot be read.
    """
    raise typer.Exit(_run("atoll replay", "numpy", "edges.replay", [folder]))


def _run(verb: str, needed: str, module: str, words: list[str]) -> int:
    if importlib.util.find_spec(needed) is None:
        remedy = "in a clone of Atoll: pip install -e '.[syncer]'"
        raise SpecError(verb, f"needs {needed}, which is not here", remedy)
    command = [sys.executable, "-P", "-m", f"atoll_syncer.{module}", *words]
    return subprocess.run(command, check=False).returncode
