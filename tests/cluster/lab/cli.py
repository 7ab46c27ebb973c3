"""The command: arguments in, words or JSON out."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.lab import binaries, faults, images, lifecycle
from cluster.lab.layout import LabError, plan
from cluster.lab.node import be_init

NODES = "us-east=2,eu-west=2,ap-south=2"


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked, 1 with a line on stderr when it could not."""
    asked = _parser().parse_args(words)
    try:
        if asked.verb == "_node":
            lab = lifecycle.current()
            be_init(lab, lab.node(asked.node), Path(asked.programs))
        with lifecycle.alone():
            _do(asked)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _do(asked: argparse.Namespace) -> None:
    began = time.monotonic()
    if asked.verb == "prepare":
        programs, _ = lifecycle.prepare()
        _say(f"programs are in {programs}")
    elif asked.verb == "up":
        nodes = asked.nodes or [NODES]
        lifecycle.up(plan(nodes, asked.clusters, asked.timing, asked.share, asked.image))
        _show(asked.json)
    elif asked.verb == "status":
        _show(asked.json)
    elif asked.verb == "cut":
        faults.cut(lifecycle.current().node(asked.node), asked.how)
    elif asked.verb == "heal":
        faults.heal(lifecycle.current().node(asked.node), binaries.programs())
    elif asked.verb == "load":
        for node in lifecycle.current().nodes():
            images.load(node, Path(asked.archive))
    elif asked.verb == "down":
        lifecycle.down()
    if asked.verb not in ("status", "prepare") and not getattr(asked, "json", False):
        sys.stderr.write(f"{asked.verb}: {time.monotonic() - began:.1f} s\n")


def _show(as_json: bool) -> None:
    described = lifecycle.describe(lifecycle.current())
    if as_json:
        _say(json.dumps(described, indent=1))
        return
    clusters: Any = described["clusters"]
    for cluster in clusters:
        _say(f"{cluster['name']}  {cluster['server']}  KUBECONFIG={cluster['kubeconfig']}")
        for node in cluster["nodes"]:
            _say(
                f"  {node['name']:20} {node['region']:12} {node['address']:14} "
                f"{node['namespace']:12} {node['state']:12} Ready={node['ready']}"
            )
    _say(f"kubectl and helm: {described['programs']}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python tests/cluster",
        description="Real Kubernetes clusters on this machine, each node in namespaces of its own.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text)

    verb("prepare", "Install, build and fetch what `up` needs; start nothing.")
    up = verb("up", "Start clusters and wait until they can be used.")
    up.add_argument("--nodes", action="append", metavar="REGION=COUNT,...",
                    help=f"nodes of a cluster; given again, of the next one ({NODES})")  # fmt: skip
    up.add_argument("--clusters", type=int, default=1, help="how many (1)")
    up.add_argument("--timing", choices=["fast", "default"], default="fast",
                    help="a lost node is seen in 8 s, or by Kubernetes' defaults")  # fmt: skip
    up.add_argument("--share", action="append", default=[], metavar="NAME=FOLDER",
                    help="a folder that pods can mount: hostPath /run/share/NAME")  # fmt: skip
    up.add_argument("--image", action="append", default=[], metavar="FILE.oci",
                    help="an OCI archive that all nodes shall have from the start")  # fmt: skip
    up.add_argument("--json", action="store_true", help="print what `status --json` prints")
    cut = verb("cut", "Lose a node.")
    cut.add_argument("node")
    cut.add_argument("--how", choices=faults.WAYS, required=True,
                     help="unplug it, end all of it at once, or end only its kubelet")  # fmt: skip
    verb("heal", "Undo every cut of a node.").add_argument("node")
    verb("load", "Import an OCI archive into all nodes.").add_argument("archive")
    status = verb("status", "Say what is up.")
    status.add_argument("--json", action="store_true", help="with kubeconfigs, namespaces and pids")
    verb("down", "End and remove everything, also what a killed `up` has left.")
    node = verbs.add_parser("_node")  # pid 1 of a node; not for people
    node.add_argument("node")
    node.add_argument("programs")
    return parser
