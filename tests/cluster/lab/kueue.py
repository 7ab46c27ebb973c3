"""Kueue, which admits a group of pods when a quota has room for all of it; built by Go.

Its Go module holds its chart as well. The image is its program alone.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.lab.archives import Image, digest, layer_file, write_archive, write_layer
from cluster.lab.binaries import TOOLS, tool
from cluster.lab.roles import USER

PROGRAM = "kueue"
PACKAGE = "sigs.k8s.io/kueue/cmd/kueue"
MODULE = "sigs.k8s.io/kueue"
REPOSITORY, TAG = "atoll.test/kueue", "test"


def archive(folder: Path) -> Path:
    """Write the image's archive into a folder; building its program takes some minutes once."""
    program = tool("kueue", PROGRAM, PACKAGE)
    layer = layer_file("kueue", digest(program.read_bytes()))
    if not layer.exists():
        with tempfile.TemporaryDirectory(dir=layer.parent) as scratch:
            shutil.copy2(program, Path(scratch) / "manager")  # as its chart calls it
            write_layer(layer, Path(scratch))
    found = folder / "kueue.oci"
    config = {"Entrypoint": ["/manager"], "User": USER}
    write_archive(found, [Image(name=f"{REPOSITORY}:{TAG}", layers=[layer], config=config)])
    return found


def chart() -> Path:
    """The folder of its chart."""
    done = subprocess.run(
        ["go", "mod", "download", "-json", MODULE],
        cwd=TOOLS / "kueue", capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(json.loads(done.stdout)["Dir"]) / "charts/kueue"
