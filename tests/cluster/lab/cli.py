"""The command: arguments in, words or JSON out."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from cluster.lab import binaries, faults, images, lifecycle, roles
from cluster.lab.layout import LabError, plan
from cluster.lab.node import be_init

NODES = "us-east=2,eu-west=2,ap-south=2"
HELP = "Real Kubernetes clusters on this machine, each node in namespaces of its own."

app = typer.Typer(
    help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
AsJson = Annotated[bool, typer.Option("--json", help="With kubeconfigs, namespaces and pids.")]
NodeNames = Annotated[list[str], typer.Argument(metavar="NODE...", help="As `status` names them.")]


def main() -> None:
    """Run one command; exit with 1 and a line on stderr when it could not do what was asked."""
    try:
        app()
    except LabError as error:
        typer.echo(str(error), err=True)
        sys.exit(1)


@app.command()
def prepare() -> None:
    """Install, build and fetch what `up` needs, and start nothing."""
    with _alone_and_timed("prepare"):
        programs = lifecycle.prepare()
        images.role_archive()
    typer.echo(f"programs are in {programs}")


@app.command()
def up(
    nodes: Annotated[
        list[str],
        typer.Option(metavar="REGION=COUNT,...", help="Of a cluster; given again, of the next."),
    ] = [NODES],  # noqa: B006  typer copies it
    clusters: Annotated[int, typer.Option(help="How many.")] = 1,
    ipv6: Annotated[bool, typer.Option("--ipv6", help="In place of IPv4.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start clusters, with the images of this checkout, and wait until they can be used."""
    with _alone_and_timed("up"):
        lifecycle.up(plan(nodes, clusters, roles.torch_shares(), ipv6=ipv6))
        _show(as_json)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Print what is up."""
    with lifecycle.alone():
        _show(as_json)


@app.command()
def cut(
    nodes: NodeNames,
    how: Annotated[faults.Way, typer.Option(help="Unplug it, end all of it, or only its kubelet.")],
) -> None:
    """Lose nodes, all at once."""
    with _alone_and_timed("cut"):
        for lost in [lifecycle.current().node(name) for name in nodes]:
            faults.cut(lost, how)


@app.command()
def heal(
    nodes: NodeNames,
    only: Annotated[
        faults.Way | None, typer.Option(help="Undo but this; else every cut is undone.")
    ] = None,
) -> None:
    """Get nodes back."""
    with _alone_and_timed("heal"):
        for lost in [lifecycle.current().node(name) for name in nodes]:
            faults.heal(lost, binaries.programs(), only)


@app.command()
def load(
    archive: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.oci]", help="An archive; else the images of this checkout."),
    ] = None,
    tag: Annotated[str, typer.Option(help="Of the images of this checkout.")] = roles.TAG,
) -> None:
    """Import images into all nodes, for pods that start from now on."""
    with _alone_and_timed("load"):
        lifecycle.load(archive or images.role_archive(tag), lifecycle.current().nodes())


@app.command()
def down(
    whose_ever: Annotated[
        bool, typer.Option("--whose-ever", help="Also the lab of another checkout.")
    ] = False,
) -> None:
    """End and remove everything, also what a killed `up` has left."""
    with _alone_and_timed("down"):
        if not whose_ever:
            lifecycle.refuse_of_another_checkout()
        lifecycle.down()


@app.command("_node", hidden=True)
def _node(name: str, programs: Path) -> None:
    """Be pid 1 of a node; not for people."""
    lab = lifecycle.current()
    be_init(lab, lab.node(name), programs)


@contextlib.contextmanager
def _alone_and_timed(verb: str) -> Iterator[None]:
    began = time.monotonic()
    with lifecycle.alone():
        yield
    typer.echo(f"{verb}: {time.monotonic() - began:.1f} s", err=True)


def _show(as_json: bool) -> None:
    described = lifecycle.describe(lifecycle.current())
    if as_json:
        typer.echo(json.dumps(described, indent=1))
        return
    for cluster in described["clusters"]:
        typer.echo(f"{cluster['name']}  {cluster['server']}")
        for node in cluster["nodes"]:
            typer.echo(
                f"  {node['name']:20} {node['region']:12} {node['address']:14} "
                f"{node['namespace']:12} {node['state']:12} Ready={node['ready']}"
            )
    typer.echo(f"images: {' '.join(described['images'])}")
    for cluster in described["clusters"]:
        typer.echo(
            f'export KUBECONFIG={cluster["kubeconfig"]} PATH="{described["programs"]}:$PATH"'
        )
