"""Images without a registry: OCI archives, and containerd folders shared by hard links."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster.lab import roles
from cluster.lab.archives import Image, digest, layer_file, write_archive, write_layer
from cluster.lab.layout import LabError, Node, cache_folder
from cluster.lab.node import CONTAINERD, PAUSE
from cluster.lab.processes import SECONDS_MAX, boot_process, run

PYTHON = "atoll.test/python:3"
PYTHON_ENV = [roles.PATH, "PIP_BREAK_SYSTEM_PACKAGES=1"]  # as other images of Python allow it
PYTHON_PACKAGES = "python3,python3-pip,ca-certificates"
SUITE = "bookworm"  # Debian 12: Python 3.11
WITHOUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
GOLDEN_KEPT = 3


def base_archive(programs: Path) -> Path:
    """Return the archive of what every node has from the start, making what is not cached.

    These are the pause image, one with nothing but Python, and the lower layers of Atoll's own.
    """
    python = python_layer()
    images = [
        Image(name=PAUSE, layers=[_pause_layer(programs)], config={"Entrypoint": ["/pause"]}),
        Image(name=PYTHON, layers=[python], config={"Cmd": ["python3"], "Env": PYTHON_ENV}),
    ]
    images += [
        Image(name=f"atoll.test/atoll-{role}:dependencies", layers=[python, layer])
        for role, layer in roles.dependency_layers().items()
    ]
    key = digest(repr(images).encode())[:12]
    archive = cache_folder() / "images" / f"base-{key}.oci"
    archive.parent.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        for old in archive.parent.glob("base-*.oci"):
            old.unlink()
        write_archive(archive, images)
    return archive


def role_archive(tag: str = roles.TAG) -> Path:
    """Write the images of this checkout, for nodes that have those of `base_archive`."""
    return roles.write_images(python_layer(), tag)


def _pause_layer(programs: Path) -> Path:
    layer = layer_file("pause", digest((programs / "pause").read_bytes()))
    if not layer.exists():
        with tempfile.TemporaryDirectory(dir=layer.parent) as scratch:
            shutil.copy2(programs / "pause", scratch)
            write_layer(layer, Path(scratch))
    return layer


def python_layer() -> Path:
    """Return the layer of a small Debian with Python."""
    user, _, group = roles.USER.partition(":")
    line = f"atoll:x:{user}:{group}::/tmp:/usr/sbin/nologin"  # some libraries ask for its name
    words = [f"--dpkgopt=path-exclude={pattern}" for pattern in WITHOUT]
    words += ["--variant=minbase", f"--include={PYTHON_PACKAGES}"]
    words += [f'--customize-hook=echo "{line}" >> "$1/etc/passwd"', SUITE]
    layer = layer_file("python", repr(words))
    if not layer.exists():
        sys.stderr.write("making the Python image; this takes about a minute\n")
        with tempfile.TemporaryDirectory(dir=layer.parent) as scratch:
            made = Path(scratch) / "python.tar"
            run("mmdebstrap", "--quiet", *words, made)
            made.rename(layer)
    return layer


def golden(archive: Path) -> Path:
    """Return a containerd folder into which an archive was imported, once and for all."""
    stat, version = archive.stat(), run("containerd", "--version")
    key = f"{version}{archive} {stat.st_size} {stat.st_mtime_ns}\n"
    folder = cache_folder() / "golden" / digest(key.encode())[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _import(Path(scratch), archive)
            (Path(scratch) / "root").rename(folder)
    folder.touch()
    old = sorted(folder.parent.iterdir(), key=lambda f: f.stat().st_mtime)[:-GOLDEN_KEPT]
    for unused in old:
        shutil.rmtree(unused, ignore_errors=True)
    return folder


def give_images(node: Node, golden_folder: Path) -> None:
    """Give a node its images: hard links, as layers and blobs are never written in place."""
    target = node.folder / "var/lib/containerd"
    run("cp", "-al", f"{golden_folder}/.", target)
    for database in target.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.rename(database)


def load(node: Node, archive: Path) -> None:
    """Import an archive into a running node."""
    pid = boot_process(node.short)
    if pid is None:
        raise LabError(f"{node.name} is off: heal it first")
    run("nsenter", "-t", str(pid), "-m", "-p", "-n", "-u", "-i", "ctr", "-n", "k8s.io",
        "images", "import", archive.resolve())  # fmt: skip


def _import(scratch: Path, archive: Path) -> None:
    """Run a containerd on its own, in namespaces that take its mounts and processes with them."""
    config = scratch / "containerd.toml"
    places = f'root = "{scratch}/root"\nstate = "{scratch}/state"\n'
    socket = scratch / "containerd.sock"
    config.write_text(f'{places}{CONTAINERD}[grpc]\n  address = "{socket}"\n')
    log = scratch.parent / "import.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
             "containerd", "--config", str(config)],
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not socket.exists():
            if time.monotonic() > deadline or daemon.poll() is not None:
                raise LabError(f"containerd does not start; see {log}")
            time.sleep(0.05)
        run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive)
    finally:
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text()
        for child in children.split():
            os.kill(int(child), signal.SIGTERM)
        daemon.wait()
