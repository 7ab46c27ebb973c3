"""`atoll credentials`: the certificates of a job's region, as a Secret for another cluster."""

import time
from typing import Annotated

import typer

from atoll_operator.cli.run_or_job import Context, JobArgument, Namespace
from atoll_protos.errors import SpecError

Region = Annotated[str, typer.Option("--region", help="Whose learners are to join the job.")]
Revoke = Annotated[
    str,
    typer.Option(
        "--revoke", metavar="REGION", help="Shut out all certificates that it has so far."
    ),
]
Days = Annotated[
    float, typer.Option(help="For which they are valid: at most 60, at least 0.001 (86 s).")
]


def credentials(
    job: JobArgument,
    region: Region = "",
    revoke: Revoke = "",
    namespace: Namespace = "",
    context: Context = "",
    days: Days = 30.0,
) -> None:
    """Print the Secret with which a region in another cluster joins the job.

    Ask the cluster where the syncer runs, and apply what is printed in the cluster of the region.
    It holds private keys. Apply a new one before it expires: running learners take it without a
    restart. With --revoke no certificate that the region has so far is believed any more; those
    that are printed from then on are.
    """
    from atoll_operator.client.credentials import credentials_of, revoked  # noqa: PLC0415 - slow

    if bool(region) == bool(revoke):
        raise SpecError("--region", "or --revoke: exactly one is needed", "give one of the two")
    place = {"namespace": namespace, "context": context}
    if revoke:
        typer.echo(revoked(job, revoke, **place), err=True)
    else:
        typer.echo(credentials_of(job, region, **place, days=days, now=time.time()), nl=False)
