"""Installs what tests run beside Atoll: object stores, SkyPilot's parser, Slurm, and trainers.

None fits into the project's environment: the requirements of moto (S3), SkyPilot and torchtitan
contradict ours, TRL brings pyarrow and pandas (270 MB), Azurite (Azure) comes from npm, and Slurm
is a package of Debian, which takes root. The others lie in `~/.cache/atoll`, by their versions. All
are installed once: `python tests/local/installed.py`, or by the first test that needs one.
"""

import fcntl
import hashlib
import os
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

MOTO = ("moto[s3]==5.2.5", "boto3==1.44.8", "flask==3.1.3", "flask-cors==6.0.5")
AZURITE = ("azurite@3.37.0",)
SKYPILOT = ("skypilot==0.14.1",)
TITAN = ("torchtitan==0.3.0",)
TRAINERS = ("trl==1.16.0", "datasets==5.2.0", "diffusers==0.42.1")
COMMANDS = {"atoll": "atoll_operator.cli", "atoll-worker": "atoll_worker.__main__"}
SLURM = ("munge", "slurm-client", "slurmctld", "slurmd")


def moto() -> Path:
    """The Python that has it."""
    return _installed("stores-moto", MOTO, _pip(MOTO)) / "bin" / "python"


def skypilot() -> Path:
    """The Python that has it."""
    return _installed("skypilot", SKYPILOT, _pip(SKYPILOT)) / "bin" / "python"


def titan() -> Path:
    """The Python that has torchtitan, and what the tests have."""
    return _on_top("titan", TITAN)


def trainers() -> Path:
    """The Python that has TRL and diffusers, and what the tests have."""
    return _on_top("trainers", TRAINERS)


def slurm() -> None:
    """Its daemons and commands, as a cluster has them."""
    if all(shutil.which(each) for each in ("munged", "sbatch", "slurmctld", "slurmd")):
        return
    if shutil.which("apt-get") is None:
        raise FileNotFoundError(f"install these (named as in Debian) by hand: {' '.join(SLURM)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run("apt-get", "update", "-qq", env=quiet)
    _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *SLURM, env=quiet)


def azurite() -> Path:
    """The program `azurite-blob`, which Node runs."""
    folder = _installed("stores-azurite", AZURITE, _install_azurite)
    return folder / "node_modules/.bin/azurite-blob"


def _installed(name: str, packages: tuple[str, ...], install: Callable[[Path], None]) -> Path:
    """A folder with these packages; of several processes that want it one installs them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll"
    key = hashlib.sha256(" ".join((*packages, sys.version)).encode()).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    whole = folder / "whole"  # a virtual environment cannot be renamed when it is made
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            install(folder)
            whole.touch()
    return folder


def _pip(packages: tuple[str, ...]) -> Callable[[Path], None]:
    def install(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check")
        _run(*pip, "--quiet", *packages)

    return install


def _on_top(name: str, packages: tuple[str, ...]) -> Path:
    """A Python with these packages that sees those of this environment behind its own."""

    def install(folder: Path) -> None:
        venv.create(folder, symlinks=True)
        python = folder / "bin" / "python"
        (own,) = folder.glob("lib/python*/site-packages")
        lines = (f"import site; site.addsitedir({each!r})\n" for each in site.getsitepackages())
        (own / "tests.pth").write_text("".join(lines))
        for command, module in COMMANDS.items():
            text = f"#!{python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
            python.with_name(command).write_text(text)
            python.with_name(command).chmod(0o755)
        _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *packages)

    return _installed(name, (*packages, sys.prefix), install) / "bin" / "python"


def _install_azurite(folder: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise FileNotFoundError(
            "there is no node or no npm, which Azurite needs: install Node.js 20 or newer with npm"
            " (Debian's packages nodejs and npm)"
        )
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    _run("npm", "install", "--prefix", folder, *options, *AZURITE)


def _run(*words: str | Path, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        [*map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise RuntimeError(f"{' '.join(map(str, words))}: exit {done.returncode}: {said}")


if __name__ == "__main__":
    for each in (moto, azurite, slurm):  # the others take minutes, and only `long` needs them
        sys.stdout.write(f"{each.__name__}: {each() or 'installed'}\n")
