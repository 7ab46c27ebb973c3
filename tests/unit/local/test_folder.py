"""One `atoll run` in a folder, and what its last status is worth when it is gone."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_operator.local import folder, progress
from atoll_protos.errors import SpecError
from unit.local.test_progress import NOW, job, reply

HOLD = """
import sys, time
from pathlib import Path
from atoll_operator.local import folder
with folder.running(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that runs what is in the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def write(out: Path, *, complete: bool = False) -> None:
    """A status that says Training, or Complete."""
    replies = [reply("Complete" if complete else "Serving"), reply()]
    status = progress.status(job(), replies, NOW).to_object()
    (out / folder.STATUS_FILE).write_text(json.dumps(status))


def test_a_second_run_in_a_folder_is_refused_with_the_process_of_the_first(
    tmp_path: Path, other: "subprocess.Popen[str]"
) -> None:
    assert folder.is_run(tmp_path)
    with (
        pytest.raises(SpecError, match=rf"another atoll run \(process {other.pid}\)"),
        folder.running(tmp_path),
    ):
        pass


def test_a_run_whose_atoll_run_was_killed_is_not_in_training(
    tmp_path: Path, other: "subprocess.Popen[str]"
) -> None:
    write(tmp_path)
    assert folder.read_status(tmp_path).true_condition("Progressing") is not None
    other.send_signal(signal.SIGKILL)
    other.wait()
    found = folder.read_status(tmp_path)
    assert found.true_condition("Progressing") is None
    assert found.learners_live == 0
    assert found.true_condition("Suspended") is not None
    with folder.running(tmp_path):
        assert folder.is_run(tmp_path)
    assert not folder.is_run(tmp_path)


def test_a_run_that_is_complete_stays_so(tmp_path: Path) -> None:
    write(tmp_path, complete=True)
    assert folder.read_status(tmp_path).true_condition("Complete") is not None


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no status\.json; give the folder of a run"):
        folder.read_status(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SpecError, match=r"--out: .*Not a directory; give a writable folder"),
        folder.running(tmp_path / "file" / "out"),
    ):
        pass


def test_processes_of_the_job_do_not_hold_the_lock(tmp_path: Path) -> None:
    with folder.running(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not folder.is_run(tmp_path)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()


def test_without_locks_nobody_is_refused_and_a_status_is_believed_while_it_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with folder.running(tmp_path):
        write(tmp_path)
        assert folder.read_status(tmp_path).true_condition("Progressing") is not None
    os.utime(tmp_path / folder.STATUS_FILE, (0, 0))
    assert folder.read_status(tmp_path).true_condition("Suspended") is not None
