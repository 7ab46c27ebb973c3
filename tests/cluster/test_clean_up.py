"""Nothing of a lab stays behind, however its `up` ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.conftest import COMMAND, LabCommand
from cluster.kubectl import until
from cluster.lab import binaries, machine
from cluster.lab.layout import BRIDGE, CGROUP, run_folder
from cluster.lab.node import OWN_FOLDERS
from cluster.lab.processes import of_lab


def _printed(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _machine() -> dict[str, object]:
    """Take down everything on this machine that a lab could have changed."""
    return {
        "processes": of_lab(),
        "links": _printed("ip", "-br", "link"),
        "namespaces": _printed("ip", "netns"),
        "routes": _printed("ip", "route", "show", "table", "all"),
        "mounts": Path("/proc/self/mounts").read_text(),
        "groups": sorted(Path("/sys/fs/cgroup").glob(f"**/{CGROUP}")),
        "folders": [folder for folder in OWN_FOLDERS if Path(folder).exists()],
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in machine.SYSCTLS},
        "run": run_folder().exists(),
    }


def _runs(name: str, count: int) -> Callable[[], bool]:
    return lambda: sum(process.name == name for process in of_lab()) >= count


MOMENTS: dict[str, Callable[[], bool]] = {
    "the network was laid": lambda: Path("/sys/class/net", BRIDGE).exists(),
    "the planes were starting": _runs("kube-apiserver", 2),
    "the first node was starting": _runs("init", 1),
    "the first kubelet was running": _runs("kubelet", 1),
}


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("the network was laid", marks=pytest.mark.long),
        pytest.param("the planes were starting", marks=pytest.mark.long),
        pytest.param("the first node was starting", marks=pytest.mark.long),
        "the first kubelet was running",
    ],
)
def test_down_removes_everything_after_up_was_killed_when(
    empty_machine: LabCommand, moment: str
) -> None:
    before = _machine()
    words = ["up", "--clusters", "2", "--nodes", "us-east=2,eu-west=1", "--nodes", "eu-west=1"]
    up = subprocess.Popen([sys.executable, COMMAND, *words], stderr=subprocess.DEVNULL)
    try:
        until(moment, MOMENTS[moment])
    finally:
        os.kill(up.pid, signal.SIGKILL)
        up.wait()
    empty_machine("down")
    assert _machine() == before


def test_down_with_nothing_up_is_fine(empty_machine: LabCommand) -> None:
    before = _machine()
    empty_machine("down")
    assert _machine() == before


def test_an_up_that_fails_removes_everything_by_itself(
    empty_machine: LabCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = _machine()
    for program in binaries.programs().iterdir():
        (tmp_path / program.name).symlink_to(program)
    (tmp_path / "coredns").unlink()
    (tmp_path / "coredns").touch()  # it cannot be started, when the rest of the plane runs already
    monkeypatch.setenv(binaries.BIN_VARIABLE, str(tmp_path))
    failed = empty_machine.attempt("up", "--nodes", "us-east=1")
    assert failed.returncode == 1
    assert "logs" in failed.stderr
    assert _machine() == before
