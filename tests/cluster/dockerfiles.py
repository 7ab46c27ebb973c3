"""The Dockerfiles for users, and the operator's as buildah builds it."""

import subprocess
from pathlib import Path

from cluster.lab import binaries, images, roles
from cluster.lab.layout import ROOT

DOCKERFILES = {role: ROOT / role / "Dockerfile" for role in roles.COMMANDS}


def help_of_the_operators_image(folder: Path) -> str:
    """Build the operator's Dockerfile, and return what its program prints as help."""
    storage = ("--root", str(folder / "root"), "--runroot", str(folder / "run"))

    def buildah(*words: str) -> str:
        line = ["buildah", *storage, "--storage-driver", "overlay", *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    base = images.base_archive(binaries.programs())
    trusted = "/etc/ssl/certs:/etc/ssl/certs:ro"
    buildah("pull", "-q", f"oci-archive:{base}:{images.PYTHON}")
    buildah("bud", "-q", "--isolation=chroot", "--pull-never", "-v", trusted, "-t", "operator:user",
            f"--build-arg=BASE={images.PYTHON}", "-f", str(DOCKERFILES["operator"]),
            str(ROOT))  # fmt: skip
    container = buildah("from", "--pull-never", "operator:user")
    printed = buildah("run", "--isolation=chroot", container, "--", "atoll", "--help")
    buildah("rm", "--all")
    return printed
