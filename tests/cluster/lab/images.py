"""Images without a registry: OCI archives, and containerd folders shared by hard links."""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.lab.layout import LabError, Node, cache_folder
from cluster.lab.node import CONTAINERD, PAUSE
from cluster.lab.processes import boot_process, run

PYTHON = "atoll.test/python:3"
PYTHON_PACKAGES = "python3,python3-pip,ca-certificates"
SUITE = "bookworm"  # Debian 12: Python 3.11
WITHOUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")
GOLDEN_KEPT = 3

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"


def base_images(programs: Path) -> list[Path]:
    """Return the archives of the pause and the Python image, making those that are not cached."""
    folder = cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    pause_key = _digest((programs / "pause").read_bytes())
    python_key = _digest(f"{SUITE} {PYTHON_PACKAGES} {WITHOUT} {PYTHON}".encode())
    pause = folder / f"pause-{pause_key[:12]}.oci"
    python = folder / f"python-{python_key[:12]}.oci"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        layer = Path(scratch) / "layer.tar"
        if not pause.exists():
            with tarfile.open(layer, "w") as tar:
                _add(tar, "pause", (programs / "pause").read_bytes(), mode=0o755)
            write_archive(pause, PAUSE, layer, {"Entrypoint": ["/pause"]})
        if not python.exists():
            _install_python(layer)
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            write_archive(python, PYTHON, layer, {"Cmd": ["python3"], "Env": [path]})
    return [pause, python]


def write_archive(file: Path, name: str, layer: Path, config: Mapping[str, object]) -> None:
    """Write a one-layer image as an OCI archive; `name` has a domain and a tag."""
    with layer.open("rb") as content:
        layer_digest = hashlib.file_digest(content, "sha256").hexdigest()
    blobs = {}

    def add(document: Mapping[str, object]) -> tuple[str, int]:
        text = json.dumps(document).encode()
        blobs[_digest(text)] = text
        return f"sha256:{_digest(text)}", len(text)

    root = {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]}
    config_digest, config_size = add(
        {"architecture": _architecture(), "os": "linux", "config": config, "rootfs": root}
    )
    layers = [
        {"mediaType": _LAYER, "digest": f"sha256:{layer_digest}", "size": layer.stat().st_size}
    ]
    described = {"mediaType": _CONFIG, "digest": config_digest, "size": config_size}
    manifest_digest, manifest_size = add(
        {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": layers}
    )
    manifest = {
        "mediaType": _MANIFEST,
        "digest": manifest_digest,
        "size": manifest_size,
        "annotations": {"io.containerd.image.name": name},
    }
    index = {"schemaVersion": 2, "manifests": [manifest]}
    partial = file.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", json.dumps(index).encode())
        for digest, text in blobs.items():
            _add(archive, f"blobs/sha256/{digest}", text)
        archive.add(layer, f"blobs/sha256/{layer_digest}")
    partial.rename(file)


def golden(archives: Sequence[Path]) -> Path:
    """Return a containerd folder into which the archives were imported, once and for all."""
    key = run("containerd", "--version")
    for archive in archives:
        stat = archive.stat()
        key += f"{archive} {stat.st_size} {stat.st_mtime_ns}\n"
    folder = cache_folder() / "golden" / _digest(key.encode())[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _import_all(Path(scratch), archives)
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


def _import_all(scratch: Path, archives: Sequence[Path]) -> None:
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
        deadline = time.monotonic() + 30
        while not socket.exists():
            if time.monotonic() > deadline or daemon.poll() is not None:
                raise LabError(f"containerd does not start; see {log}")
            time.sleep(0.05)
        for archive in archives:
            run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive)
    finally:
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text()
        for child in children.split():
            os.kill(int(child), signal.SIGTERM)
        daemon.wait()


def _install_python(layer: Path) -> None:
    """Make the tar of a small Debian with Python."""
    sys.stderr.write("making the Python image; this takes about a minute\n")
    words = [f"--dpkgopt=path-exclude={pattern}" for pattern in WITHOUT]
    words += ["--variant=minbase", f"--include={PYTHON_PACKAGES}", SUITE, str(layer)]
    run("mmdebstrap", "--quiet", *words)


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
