"""What a person means by a name: a run folder, a job in a cluster, or the server of a job."""

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll_operator.local.folder import log_files as files
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.machines.looking.served import Served

OFFER_SECONDS_MAX = 2.0  # that a shell waits for the names of jobs
PLACE = re.compile(r"[^/]+:[0-9]{1,5}")
JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def offered_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs that a shell can offer. One that is offered nothing offers files."""
    if incomplete and JOB_NAME.fullmatch(incomplete.rstrip("-")) is None:
        return []
    from atoll_operator.client import JobClient  # noqa: PLC0415 - slow to import

    given = (context.params.get(name) or "" for name in ("namespace", "context"))
    with contextlib.suppress(SpecError):
        jobs = JobClient(*given, call_seconds_max=OFFER_SECONDS_MAX)
        return [each.name for each in jobs.list() if each.name.startswith(incomplete)]
    return []


def offered(context: typer.Context, incomplete: str) -> list[str]:
    begun = Path(f"{incomplete}x").parent
    inside = [each for place in (begun, begun / "runs") for each in place.glob("*/")]
    folders = sorted(str(each) for each in inside if files.holds_run(each))
    found = [each for each in folders if each.startswith(incomplete)]
    return [*found, *offered_jobs(context, incomplete)]


Which = Annotated[
    str,
    typer.Argument(
        metavar="DIR|JOB|HOST:PORT",
        autocompletion=offered,
        help="Folder of a run; name of a job in the cluster of your kubeconfig; or HOST:PORT of"
        " `atoll serve`.",
    ),
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", autocompletion=offered_jobs, help="A job of the cluster.")
]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        help="For HOST:PORT, from `atoll tokens`; needed once.",
        show_default="as before, or $ATOLL_TOKEN",
    ),
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
        there = "holds no run" if Path(which).is_dir() else "is not there"
        remedy = "give the folder of a run, the name of a job in a cluster, or HOST:PORT"
        raise SpecError(which, there, remedy)
    return None


def served_at(which: str, token: str, namespace: str, context: str) -> "Served | None":
    """None: it is no HOST:PORT. Raises SpecError, also for a server that does not answer."""
    is_place = PLACE.fullmatch(which) is not None and not (namespace or context)
    if not is_place or files.holds_run(Path(which)):
        if token:
            raise SpecError("--token", f"is for HOST:PORT, and {which} is none", "leave it out")
        return None
    from atoll_operator.machines.looking.served import connect  # noqa: PLC0415 - needs gRPC

    return connect(which, token, os.environ.get(Env.TOKEN, ""))


@contextmanager
def folder_or_copy(
    which: str,
    of: str,
    *,
    token: str,
    namespace: str,
    context: str,
    follow: bool = False,
    tail: int | None = None,
) -> Iterator[Path | None]:
    """The folder of a run, or a copy of what is asked of that of a server; None: a job's name.

    `of`: status, logs or curves. Raises SpecError.
    """
    served = served_at(which, token, namespace, context)
    if served is None:
        yield folder_of(which, namespace, context)
        return
    with served.copy(of, follow=follow, tail=tail) as copy:
        yield copy
