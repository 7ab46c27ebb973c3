"""`atoll chaos`: a plan of faults in the words of Chaos Mesh, for a job in a cluster."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from atoll_operator.cli.manifest_file import read_text
from atoll_operator.cli.run_or_job import JOB_NAME, Namespace
from atoll_protos.errors import SpecError


def chaos(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.yaml", help="As for `atoll run`.")],
    job: Annotated[str, typer.Option(metavar="NAME", help="The job whose pods are hit.")],
    namespace: Namespace = "",
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Its learners have several hosts (spec.learner.hosts).")
    ] = False,
) -> None:
    """Print a plan of faults as a Workflow of Chaos Mesh, for `kubectl apply -f -`.

    What Chaos Mesh has no word for is left out, and listed on the standard error.
    """
    from atoll_operator.cli import chaos_mesh  # noqa: PLC0415 - only this verb needs it
    from atoll_operator.local.chaos.plan import read  # noqa: PLC0415

    if JOB_NAME.fullmatch(job) is None:
        raise SpecError("--job", f"{job!r} is not the name of a job", "give that of its manifest")
    pods = chaos_mesh.Pods(job=job, hosts=hosts)
    found, left_out = chaos_mesh.workflow(read(read_text(plan)), pods, namespace)
    for line in left_out:
        typer.echo(line, err=True)
    if not found["spec"]["templates"][0]["children"]:
        problem = "Chaos Mesh has no word for any of its faults"
        raise SpecError(str(plan), problem, "use them with atoll run --chaos-plan")
    typer.echo(yaml.safe_dump(found, sort_keys=False), nl=False)
