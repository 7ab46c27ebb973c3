"""The release before this one: its chart, and its operator's image for the nodes of the lab."""

import subprocess
from pathlib import Path

from cluster.lab import roles
from cluster.lab.archives import Image, write_archive
from cluster.lab.images import python_layer
from cluster.lab.layout import ROOT

COMMIT = "b40570c"  # one replica of the operator, without a Lease
TAG = "previous"


def checkout(folder: Path) -> Path:
    """Write the files of that release into a folder; raises CalledProcessError without history."""
    archive = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return folder


def image(release: Path, archive: Path) -> str:
    """Write the image of its operator, upon the layers that every node has; returns its name."""
    python, dependencies = python_layer(), roles.dependency_layers()["operator"]
    wheel = roles.wheel_layer(release)
    found = Image(
        name=roles.name("operator", TAG),
        layers=[python, dependencies, wheel],
        config={"Entrypoint": ["atoll"], "Env": [roles.PATH], "User": roles.USER},
    )
    write_archive(archive, [found], known={python, dependencies})
    return found.name
