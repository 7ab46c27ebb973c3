"""`atoll replay`: recorded merges are computed again, and the first that differs is named."""

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from atoll_protos.errors import SpecError

PROGRAM = (sys.executable, "-P", "-m", "atoll_syncer.edges.replay")


def replay(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of a run.")],
) -> None:
    """Compute recorded merges again, and name the first whose bits differ.

    A run is recorded with `atoll run --record`. The exit code is 0 where all versions have equal
    bits, 1 where one has not, 64 where there is no record, and 75 where it cannot be read.
    """
    if importlib.util.find_spec("numpy") is None:
        remedy = "in a clone of Atoll: pip install -e '.[syncer]'"
        raise SpecError("atoll replay", "needs numpy, which is not here", remedy)
    raise typer.Exit(subprocess.run([*PROGRAM, folder], check=False).returncode)
