"""`atoll status`: how the run of a folder stands; of a job in a cluster kubectl says it."""

import json
import time
from typing import Annotated

import typer

from atoll_operator.cli.run_or_job import FolderArgument, run_folder
from atoll_operator.local import last_status
from atoll_operator.local.run_files import STATUS_FILE
from atoll_operator.local.show.status_text import status_text
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import RunFile


def status(
    which: FolderArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="All of it, in the shape of the CRD's status.")
    ] = False,
) -> None:
    """Say how a run stands: its step, losses, learners, and what is wrong with it."""
    out = run_folder(which)
    found = last_status.read_status(out)
    if as_json:
        typer.echo(json.dumps(found.to_object(), indent=2))
        return
    if not (out / "run.json").is_file():
        raise SpecError(str(out), "has no run.json", "give the folder of a run")
    age = time.time() - (out / STATUS_FILE).stat().st_mtime
    run = RunFile.from_json((out / "run.json").read_text(encoding="utf-8"))
    typer.echo(status_text(found, run.job, run.steps, age))
