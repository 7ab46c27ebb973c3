"""A command in the background: what it is started with, how it is seen to run, and how it ends."""

import errno
import os
import sys
from pathlib import Path

import pytest

from atoll_operator.cli import detached
from atoll_operator.local import run_folder
from atoll_operator.machines import bundle
from atoll_protos.errors import SpecError

COMMAND = """
import signal, sys
from pathlib import Path
from atoll_operator.local import run_folder as run_lock
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if "--bad" in sys.argv:
    sys.exit("this cannot work")
with run_lock.running(Path(sys.argv[-1])):
    print("ready", flush=True)
    while True:
        signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    command = tmp_path / "command.py"
    command.write_text(COMMAND)
    monkeypatch.setattr(sys, "argv", [str(command)])
    return tmp_path / "state"


def test_it_is_the_same_command_without_the_secret_that_it_needs_no_more() -> None:
    given = ["join", "h:7700", "--token", "T", "--detach", "--state=a", "--gpus-per-learner", "2"]
    script = ["--", "train.py", "--token", "mine"]
    words = detached.again([*given, *script], ("--token", "--state"), "--state", "b")
    assert words == ["join", "h:7700", "--gpus-per-learner", "2", "--state", "b", *script]
    assert detached.again(given[:5], ("--token",)) == ["join", "h:7700"]


def test_it_runs_in_a_session_of_its_own_until_it_is_stopped(folder: Path) -> None:
    folder.mkdir()
    said: list[str] = []
    log = folder / "log"
    log.write_text("ready, said an earlier one\n")
    assert detached.start([str(folder)], log, said.append, "waits", "ready") == 0
    pid = run_folder.holder(folder)
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)
    assert said[0] == "ready"
    assert f"process {pid}" in said[1]
    with pytest.raises(SpecError, match=f"is in use by another atoll command .process {pid}"):
        detached.start([str(folder)], log, said.append, "ready")
    detached.stop(folder, said.append)
    assert not run_folder.is_run(folder)
    with pytest.raises(SpecError, match="--stop: nothing runs in"):
        detached.stop(folder, said.append)


def test_what_cannot_start_is_shown_with_its_exit_code(folder: Path) -> None:
    said: list[str] = []
    words = ["--bad", str(folder)]
    assert detached.start(words, folder / "log", said.append, "ready") == 1
    assert said == ["this cannot work"]


def test_a_folder_in_which_it_could_say_nothing_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundle, "write_private", full)
    with pytest.raises(SpecError, match="No space left on device; make room"):
        detached.start(["--bad", str(folder)], folder / "log", lambda _: None, "ready")
    assert not (folder / "log").exists()


def test_a_number_that_an_earlier_process_has_left_is_nobody(folder: Path) -> None:
    folder.mkdir()
    assert run_folder.holder(folder) is None
    with run_folder.running(folder):
        assert run_folder.holder(folder) == os.getpid()
        (folder / run_folder.LOCK_FILE).write_text("1\n")
        assert run_folder.holder(folder) is None
    assert run_folder.holder(folder) is None
