"""`atoll status`: the status of a run folder."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.local import folder
from atoll_operator.local.told import told
from atoll_protos.errors import SpecError
from atoll_protos.run import RunFile


def status(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="All of it, in the shape of the CRD's status.")
    ] = False,
) -> None:
    """Say how a run stands: its step, losses, learners, and what is wrong with it."""
    found = folder.read_status(out)
    if as_json:
        typer.echo(json.dumps(found.to_object(), indent=2))
        return
    if not (out / "run.json").is_file():
        raise SpecError(str(out), "has no run.json", "give the folder of a run")
    age = time.time() - (out / folder.STATUS_FILE).stat().st_mtime
    run = RunFile.from_json((out / "run.json").read_text(encoding="utf-8"))
    typer.echo(told(found, run, age))
