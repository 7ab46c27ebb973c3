"""What a person means by a name: a run folder, or a job in a cluster."""

import contextlib
import re
from pathlib import Path
from typing import Annotated

import typer

from atoll_operator.local import run_folder as files
from atoll_protos.errors import SpecError

OFFER_SECONDS_MAX = 2.0  # that a shell waits for the names of jobs
JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def offered_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs that a shell can offer. One that is offered nothing offers files."""
    if incomplete and JOB_NAME.fullmatch(incomplete.rstrip("-")) is None:
        return []
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import

    given = (context.params.get(name) or "" for name in ("namespace", "context"))
    with contextlib.suppress(SpecError):
        jobs = JobClient(*given, call_seconds_max=OFFER_SECONDS_MAX)
        return [name for name in jobs.names() if name.startswith(incomplete)]
    return []


def offered_folders(incomplete: str) -> list[str]:
    """Run folders that a shell can offer, here and in `runs`."""
    begun = Path(f"{incomplete}x").parent
    inside = [path for place in (begun, begun / "runs") for path in place.glob("*/")]
    folders = sorted(str(each) for each in inside if files.holds_run(each))
    return [folder for folder in folders if folder.startswith(incomplete)]


def offered(context: typer.Context, incomplete: str) -> list[str]:
    return [*offered_folders(incomplete), *offered_jobs(context, incomplete)]


Which = Annotated[
    str,
    typer.Argument(
        metavar="DIR|JOB",
        autocompletion=offered,
        help="Folder of a run, or name of a job in the cluster of your kubeconfig.",
    ),
]
FolderArgument = Annotated[
    str, typer.Argument(metavar="DIR", autocompletion=offered_folders, help="Folder of a run.")
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", autocompletion=offered_jobs, help="A job of the cluster.")
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Of a job; left out, as for kubectl.")
]
Context = Annotated[str, typer.Option("--context", help="Of the kubeconfig, for a job.")]


def folder_of(which: str, namespace: str, context: str) -> Path | None:
    """None: it is a job's name, as every name with a namespace is. Raises SpecError for neither."""
    if namespace or context:
        return None
    if files.holds_run(Path(which)):
        return Path(which)
    if JOB_NAME.fullmatch(which) is None:
        raise _no_run(which, "give the folder of a run, or the name of a job in a cluster")
    return None


def run_folder(which: str) -> Path:
    """Return the folder of a run. Raises SpecError, also for a job, which kubectl changes."""
    if not files.holds_run(Path(which)):
        remedy = "give the folder of a run; docs/operating.md has kubectl's commands for a job"
        raise _no_run(which, remedy)
    return Path(which)


def _no_run(which: str, remedy: str) -> SpecError:
    there = "holds no run" if Path(which).is_dir() else "is not there"
    return SpecError(which, there, remedy)
