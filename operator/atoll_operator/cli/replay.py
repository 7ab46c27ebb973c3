"""`atoll replay`: recorded merges are computed again, and the first that differs is named."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.cli.manifest_file import read_text
from atoll_operator.local.folder.run_files import RUN_FILE
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import RunFile

MODULE = "atoll_syncer.edges.replaying"
PROGRAM = (sys.executable, "-P", "-m", MODULE)
NEEDED = ("numpy", "obstore")


def replay(
    where: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="The folder of a run, the place of its checkpoints, or a record in one.",
        ),
    ],
    endpoint: Annotated[
        str,
        typer.Option(metavar="URL", help="Where the store answers; left out, at the provider's."),
    ] = "",
) -> None:
    """Compute recorded merges again, and name the first whose bits differ.

    A run is recorded with `atoll run --record`, or with spec.checkpoint.record. The exit code is 0
    where all versions have equal bits, 1 where one has not, 64 where there is no record, and 75
    where the place cannot be read.
    """
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            remedy = "in a clone of Atoll: pip install -e '.[syncer]'"
            raise SpecError("atoll replay", f"needs {module}, which is not here", remedy)
    words = [*PROGRAM, _url(where), *(("--endpoint", endpoint) if endpoint else ())]
    raise typer.Exit(subprocess.run(words, check=False).returncode)


def _url(where: str) -> str:
    """Of the place in which records may be. Raises SpecError."""
    folder = Path(where)
    if "://" in where:
        return where
    if not folder.is_dir():
        raise SpecError(where, "is no folder", "give the folder of a run or of a record, or a URL")
    if (folder / RUN_FILE).is_file():
        recorded = RunFile.from_json(read_text(folder / RUN_FILE)).recorded
        if recorded is not None:
            return recorded.url
    return f"file://{folder.resolve()}"
