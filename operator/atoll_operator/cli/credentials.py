"""`atoll credentials`: the certificates of a job's region, for another cluster or a machine."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll_operator.cli.run_or_job import Context, JobArgument, Namespace
from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.client.credentials import RegionCredentials

Region = Annotated[str, typer.Option("--region", help="Whose learners are to join the job.")]
Revoke = Annotated[
    str,
    typer.Option(
        "--revoke",
        metavar="REGION",
        help="Shut out all certificates that it has so far, or with --machine that one alone.",
    ),
]
MachineName = Annotated[
    str,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="With --files: make them for this machine and its slots alone.",
        show_default="any machine of the region",
    ),
]
Learners = Annotated[
    int | None,
    typer.Option(min=1, help="With --machine: how many it brings.", show_default="as before, or 1"),
]
Files = Annotated[
    Path | None,
    typer.Option(
        "--files",
        metavar="DIR",
        help="Write them there for `atoll join --credentials DIR`, in place of the Secret.",
    ),
]
Days = Annotated[
    float, typer.Option(help="For which they are valid: at most 60, at least 0.001 (86 s).")
]


def credentials(  # noqa: PLR0913, PLR0917 - each argument is an option of the command
    job: JobArgument,
    region: Region = "",
    files: Files = None,
    revoke: Revoke = "",
    machine: MachineName = "",
    learners: Learners = None,
    namespace: Namespace = "",
    context: Context = "",
    days: Days = 30.0,
) -> None:
    """Print the Secret with which a region in another cluster joins the job.

    Ask the cluster where the syncer runs, and apply what is printed in the cluster of the region.
    It holds private keys. Apply a new one before it expires: running learners take it without a
    restart. With --files a folder is written instead, which brings a machine without Kubernetes
    into the job; with --machine it can be shut out alone. With --revoke no certificate that the
    region has so far is believed any more; those that are made from then on are.
    """
    import yaml  # noqa: PLC0415 - slow, as the next one

    from atoll_operator.client.credentials import (  # noqa: PLC0415
        OneMachine,
        credentials_of,
        revoked,
    )

    if bool(region) == bool(revoke):
        raise SpecError("--region", "or --revoke: exactly one is needed", "give one of the two")
    if machine and not (files or revoke):
        raise SpecError("--machine", "is for a machine without Kubernetes", "add --files DIR")
    if learners is not None and (revoke or not machine):
        remedy = "leave it out: `atoll join --credentials DIR --learners N` says it there"
        raise SpecError("--learners", "is for --machine", remedy)
    place = {"namespace": namespace, "context": context}
    if revoke:
        typer.echo(revoked(job, revoke, machine, **place), err=True)
        return
    one = OneMachine(name=machine, learners=learners) if machine else None
    made = credentials_of(job, region, one, **place, days=days, now=time.time())
    if files is None:
        typer.echo(yaml.safe_dump(made.secret, sort_keys=False), nl=False)
    else:
        typer.echo(_written(files, made, region), err=True)


def _written(folder: Path, made: "RegionCredentials", region: str) -> str:
    """Write the folder; return what to do with it, in words. Raises SpecError."""
    from atoll_operator.api.job.process_inputs import run_file  # noqa: PLC0415
    from atoll_operator.local.process_plan import container_elsewhere  # noqa: PLC0415
    from atoll_operator.machines.bundle import Bundle, write  # noqa: PLC0415

    job = made.job
    bundle = Bundle(
        job=job.name,
        region=region,
        learners=next(entry.learners for entry in job.spec.regions if entry.name == region),
        endpoints=made.endpoints,
        container=container_elsewhere(job, region),
        hosts=job.spec.learner.hosts,
        hosts_min=job.spec.learner.hosts_min or 0,
        slots=made.slots,
    )
    try:
        write(folder, bundle, run_file(job).to_json(), made.learner)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise SpecError(str(error.filename or folder), problem, "give a writable folder") from error
    return (
        f"{folder} holds private keys. Bring it to a machine of region {region}, and there:"
        f" atoll join --credentials {folder} -- SCRIPT"
    )
