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

from atoll_operator.local import last_status, local_status, run_folder
from atoll_operator.local.run_files import STATUS_FILE
from atoll_protos.errors import SpecError
from unit.local.test_local_status import NOW, job, reply

HOLD = """
import sys, time
from pathlib import Path
from atoll_operator.local import run_folder
with run_folder.running(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that runs what is in the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def write(out: Path, *, complete: bool = False) -> None:
    """A status that says Training, or Complete."""
    replies = [reply("Complete" if complete else "Serving"), reply()]
    status = local_status.status(job(), replies, NOW).to_object()
    (out / STATUS_FILE).write_text(json.dumps(status))


def test_a_second_run_is_refused_and_one_that_was_killed_is_suspended(
    tmp_path: Path, other: "subprocess.Popen[str]"
) -> None:
    write(tmp_path)
    refused = pytest.raises(SpecError, match=rf"another atoll command \(process {other.pid}\)")
    with refused, run_folder.running(tmp_path):
        pass
    assert last_status.read_status(tmp_path).true_condition("Progressing") is not None
    other.send_signal(signal.SIGKILL)
    other.wait()
    found = last_status.read_status(tmp_path)
    assert found.true_condition("Progressing") is None
    assert found.learners_live == 0
    assert found.true_condition("Suspended") is not None
    with run_folder.running(tmp_path):
        assert run_folder.is_run(tmp_path)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not run_folder.is_run(tmp_path)  # a process of the job does not hold the lock
    finally:
        child.kill()
        child.wait()


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no status\.json; give the folder of a run"):
        last_status.read_status(tmp_path)
    write(tmp_path, complete=True)
    assert last_status.read_status(tmp_path).true_condition("Complete") is not None
    below = run_folder.running(tmp_path / STATUS_FILE / "out")
    with pytest.raises(SpecError, match=r"--out: .*Not a directory; give a writable f"), below:
        pass


def test_without_locks_nobody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*arguments: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with run_folder.running(tmp_path):
        write(tmp_path)
        assert last_status.read_status(tmp_path).true_condition("Progressing") is not None
    os.utime(tmp_path / STATUS_FILE, (0, 0))
    assert last_status.read_status(tmp_path).true_condition("Suspended") is not None
