"""A disk that has no room ends no run: each file is tried again, or left out with one line."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.api.job.process_inputs import expected, run_file
from atoll_operator.local import atoll_run, log_keeper, run_files
from atoll_operator.local.last_status import uid_in
from atoll_operator.local.local_status import JobNow, JobState
from atoll_operator.local.run_files import RUN_FILE, SLOTS_FILE, Appended, Files
from atoll_operator.local.show import plots
from atoll_operator.local.show.run_summary import RunResult
from atoll_operator.local.supervisor import Supervisor
from atoll_protos.errors import SpecError
from unit.local.supervised import SLEEP, python
from unit.local.test_atoll_run import learner, training_of
from unit.local.test_local_status import job


def test_a_current_folder_that_is_deleted_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    assert run_files.shown(here / "a.log") == "a.log"
    here.rmdir()
    assert run_files.shown(here / "a.log") == str(here / "a.log")


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can be written into files."""

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refuse)
        patch.setattr(os, "write", refuse)
        yield


def test_it_is_told_once_and_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    kept = Files(tmp_path, said.append)
    assert kept.write("a", "before")
    with full(monkeypatch):
        assert not kept.write("a", "now")
        assert not kept.write_json("b", {})
        assert not kept.write("a", "now")
    assert (tmp_path / "a").read_text() == "before"
    assert len(said) == 1
    assert "No space left on device (a); the run continues, commits wait" in said[0]
    assert kept.write("a", "now")
    assert len(said) == 1
    assert kept.write("b", "now")
    assert said[1:] == [f"{tmp_path}: b is written again"]


def test_a_run_may_have_no_room_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text[:3].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    begin = (run_file(job()), expected(job()), tmp_path, "a manifest")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(SpecError, match="No space left on device; give a"):
            atoll_run.prepare(*begin, resume=False)
    assert [*tmp_path.iterdir()] == []  # part of a file takes no room
    assert atoll_run.prepare(*begin, resume=False)


def test_a_run_finds_its_state_in_the_bucket_and_no_other_run_does(tmp_path: Path) -> None:
    def begin(out: Path, url: str, *, resume: bool = False) -> str:
        out.mkdir(exist_ok=True)
        new = atoll_run.prepare(run_file(job()), expected(job()), out, "", resume=resume, url=url)
        assert new is not resume
        return uid_in(out)

    one, other, folder = (tmp_path / name for name in ("one", "other", "folder"))
    first = begin(one, "s3://b/runs")
    assert first
    assert first != begin(other, "s3://b/runs")
    assert begin(one, "s3://b/runs", resume=True) == first
    (one / RUN_FILE).unlink()  # it was killed before it had begun a run
    assert begin(one, "s3://b/runs") not in (first, "")
    assert begin(folder, "") == ""
    for out, url, words in (
        (one, "s3://b", "is s3://b, and the run in .*/one has its state in s3://b/runs; resume"),
        (one, "", "is not given, and the run in .*/one has its state in s3://b/runs; resume"),
        (folder, "s3://b", "is s3://b, and the run in .*/folder has its state in .*/folder; res"),
    ):
        with pytest.raises(SpecError, match=rf"^spec\.syncer\.storage\.url: {words}"):
            begin(out, url, resume=True)
    (one / RUN_FILE).unlink()
    assert begin(one, "") == ""


def test_each_file_is_written_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    lost = learner("a-1")
    lost.given_up = "ValueError: boom"
    training = training_of(tmp_path, learner("a-0"), lost, say=said.append)
    processes = Supervisor([python(SLEEP)], training.files, said.append)
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    try:
        with full(monkeypatch):
            training.advance(1.0)
            processes.supervise(1.0, JobNow(state=JobState.TRAINING))
            atoll_run._summarise(training, RunResult.FAILED, "failed", 1.0)
        assert not [path for path in tmp_path.iterdir() if path.is_file()]
        assert [line for line in said if "No space left" in line] == said[:1]
        training.advance(2.0)
        processes.supervise(1.0, JobNow(state=JobState.TRAINING))
        atoll_run._summarise(training, RunResult.FAILED, "failed", 1.0)
        for name in ("status.json", SLOTS_FILE, "processes.json", "summary.json"):
            assert (tmp_path / name).exists(), name
    finally:
        processes.stop()


def test_the_newest_words_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "logs" / "a-0.log")
    with full(monkeypatch):
        assert log_keeper.written(path, b"hello") == b"hello"
    assert log_keeper.written(path, b"hello") == b""
    assert Path(path).read_bytes() == b"hello"

    monkeypatch.setattr(log_keeper, "WAITING_BYTES_MAX", 3)
    tries = iter([True, True, False])
    real = log_keeper.written
    monkeypatch.setattr(
        log_keeper, "written", lambda path, text: text if next(tries) else real(path, text)
    )
    source, sink = os.pipe()
    os.write(sink, b"12345")
    os.close(sink)
    monkeypatch.setattr(log_keeper, "READ_BYTES", 4)
    log_keeper.keep(source, path)
    os.close(source)
    assert Path(path).read_bytes() == b"hello" + b"345"


def test_a_process_that_prints_to_a_full_disk_goes_on(tmp_path: Path) -> None:
    """It ended at its first `print`."""
    (tmp_path / "logs").write_text("no folder")
    script = "print('x' * 100_000, flush=True); print('end', flush=True)"
    printing = subprocess.Popen(
        [sys.executable, "-I", "-S", log_keeper.__file__, tmp_path / "logs" / "a-0.log"],
        stdin=subprocess.PIPE,
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=printing.stdin, check=False)
    assert done.returncode == 0
    printing.communicate(timeout=60)
    assert printing.returncode == 0


def test_a_signal_to_all_processes_leaves_the_log_to_those_that_still_write(tmp_path: Path) -> None:
    """systemd and Slurm send it so, and the last words of a learner came to nobody."""
    path = tmp_path / "a-0.log"
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", log_keeper.__file__, path], stdin=subprocess.PIPE
    )
    assert keeper.stdin is not None
    keeper.stdin.write(b"trains\n")
    keeper.stdin.flush()
    while not (path.exists() and path.read_bytes()):
        assert keeper.poll() is None
        time.sleep(0.01)
    keeper.terminate()
    keeper.communicate(b"leaves\n", timeout=60)
    assert keeper.returncode == 0
    assert path.read_text() == "trains\nleaves\n"


def test_whole_pieces_are_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "WAITING_BYTES_MAX", 10)
    (tmp_path / "folder").write_text("no folder")
    appended = Appended(tmp_path / "folder" / "file")
    for piece in (b"1234", b"5678", b"90ab"):
        appended.add(piece)
        assert appended.flush() is not None
    (tmp_path / "folder").unlink()
    assert appended.flush() is None
    appended.add(b"cd")
    assert appended.flush() is None
    assert (tmp_path / "folder" / "file").read_bytes() == b"12345678cd"
