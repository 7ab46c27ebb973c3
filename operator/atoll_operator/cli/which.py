"""What a person means by a name: the folder of a run, or a job in a cluster."""

import re
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.local import logs as files
from atoll_protos.errors import SpecError

JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

Which = Annotated[
    str,
    typer.Argument(
        metavar="DIR|JOB",
        help="Folder of a run; or name of a job in the cluster of your kubeconfig.",
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Of a job; left out, as for kubectl.")
]
Context = Annotated[str, typer.Option("--context", help="Of the kubeconfig, for a job.")]


def folder_of(which: str, namespace: str, context: str) -> Path | None:
    """The folder of a run; None: it is the name of a job.

    A folder that holds a run is taken as that; any other name is a job's, and so is every name
    that comes with a namespace or a context. Raises SpecError for what can be neither.
    """
    if namespace or context:
        return None
    if files.holds_run(Path(which)):
        return Path(which)
    if JOB_NAME.fullmatch(which) is None:
        there = "holds no run" if Path(which).is_dir() else "is not there"
        remedy = "give the folder of a run, or the name of a job in a cluster"
        raise SpecError(which, there, remedy)
    return None
