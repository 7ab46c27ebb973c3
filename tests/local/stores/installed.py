"""Installs the servers of the store tests: moto (S3) from PyPI, Azurite (Azure) from npm.

Neither fits into the project's environment: moto's requirements contradict those of kubernetes, and
Azurite is no Python. They lie in `~/.cache/atoll`, by their versions, and are installed once:
`python tests/local/stores/installed.py`, or by the first test that needs one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

MOTO = ("moto[s3]==5.2.5", "boto3==1.44.8", "flask==3.1.3", "flask-cors==6.0.5")
AZURITE = ("azurite@3.37.0",)


def moto() -> Path:
    """The Python that has it."""
    return _installed("moto", MOTO, _install_moto) / "bin" / "python"


def azurite() -> Path:
    """The program `azurite-blob`, which Node runs."""
    return _installed("azurite", AZURITE, _install_azurite) / "node_modules/.bin/azurite-blob"


def _installed(name: str, packages: tuple[str, ...], install: Callable[[Path], None]) -> Path:
    """A folder with these packages; of several processes that want it one installs them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll"
    key = hashlib.sha256(" ".join((*packages, sys.version)).encode()).hexdigest()[:12]
    folder = cache / f"stores-{name}-{key}"
    whole = folder / "whole"  # a virtual environment cannot be renamed when it is made
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            install(folder)
            whole.touch()
    return folder


def _install_moto(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check")
    _run(*pip, "--quiet", *MOTO)


def _install_azurite(folder: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise FileNotFoundError(
            "there is no node or no npm, which Azurite needs: install Node.js 20 or newer with npm"
            " (Debian's packages nodejs and npm)"
        )
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    _run("npm", "install", "--prefix", folder, *options, *AZURITE)


def _run(*words: str | Path) -> None:
    done = subprocess.run(
        [*map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise RuntimeError(f"{' '.join(map(str, words))}: exit {done.returncode}: {said}")


if __name__ == "__main__":
    for each in (moto, azurite):
        sys.stdout.write(f"{each()}\n")
