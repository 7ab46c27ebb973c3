"""`atoll store check`: whether a bucket does what the shards of a job need of it."""

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from atoll_protos.errors import SpecError

MODULE = "atoll_syncer.storage.store_check"
PROGRAM = (sys.executable, "-P", "-m", MODULE)
NEEDED = "obstore"

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
    if importlib.util.find_spec(NEEDED) is None:
        remedy = "in a clone of Atoll: pip install -e '.[syncer]'"
        raise SpecError("atoll store check", f"needs {NEEDED}, which is not here", remedy)
    words = [*PROGRAM, url, *(("--endpoint", endpoint) if endpoint else ())]
    raise typer.Exit(subprocess.run(words, check=False).returncode)
