"""`atoll credentials`: the certificates of a job's region, as a Secret for another cluster."""

import time
from typing import Annotated

import typer

from atoll_operator.cli.which import offered_jobs
from atoll_protos.errors import SpecError


def credentials(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", autocompletion=offered_jobs, help="A job of the cluster."),
    ],
    region: Annotated[
        str, typer.Option("--region", help="Whose learners are to join the job.")
    ] = "",
    revoke: Annotated[
        str,
        typer.Option(
            "--revoke", metavar="REGION", help="Shut out all certificates that it has so far."
        ),
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Of the job; left out, as for kubectl.")
    ] = "",
    context: Annotated[
        str, typer.Option(help="Of the kubeconfig: the cluster where the syncer runs.")
    ] = "",
    days: Annotated[
        float, typer.Option(help="For which they are valid: at most 60, at least 0.001 (86 s).")
    ] = 30.0,
) -> None:
    """Print the Secret with which a region in another cluster joins the job.

    Ask the cluster where the syncer runs, and apply what is printed in the cluster of the region.
    It holds private keys. Apply a new one before it expires: running learners take it without a
    restart. With --revoke no certificate that the region has so far is believed any more; those
    that are printed from then on are.
    """
    from atoll_operator.kube.credentials import credentials_of, revoked  # noqa: PLC0415 - slow

    if bool(region) == bool(revoke):
        raise SpecError("--region", "or --revoke: exactly one is needed", "give one of the two")
    if revoke:
        typer.echo(revoked(job, revoke, namespace=namespace, context=context), err=True)
        return
    typer.echo(
        credentials_of(
            job, region, namespace=namespace, context=context, days=days, now=time.time()
        ),
        nl=False,
    )
