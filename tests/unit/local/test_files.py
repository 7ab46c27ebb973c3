"""A disk that has no room ends no run: each file is tried again, or left out with one line."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.api.runfile import expected, run_file
from atoll_operator.local import files, keeper, plots, run
from atoll_operator.local.files import Appended, Files, write_whole
from atoll_operator.local.plan import SLOTS_FILE
from atoll_operator.local.summary import Exit
from atoll_operator.local.supervisor import Supervisor
from atoll_protos.errors import SpecError
from unit.local.test_progress import job
from unit.local.test_supervisor import exiting
from unit.local.test_training import learner, training_of


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can be written into files."""

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", refuse)
        patch.setattr(os, "write", refuse)
        yield


def test_it_is_told_once_and_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_was_begun_of_a_file_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text[:3].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a", "a text")
    assert [*tmp_path.iterdir()] == []


def test_each_file_of_a_run_that_goes_on_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    lost = learner("a-1")
    lost.given_up = "ValueError: boom"
    training = training_of(tmp_path, learner("a-0"), lost, say=said.append)
    processes = Supervisor([exiting(0)], training.files, said.append)
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    try:
        with full(monkeypatch):
            training.advance(1.0)
            processes.supervise(1.0, final=False)
            run._summarise(training, Exit.FAILED, "failed", 1.0)
        assert not [path for path in tmp_path.iterdir() if path.is_file()]
        assert [line for line in said if "No space left" in line] == said[:1]
        training.advance(2.0)
        processes.supervise(1.0, final=False)
        run._summarise(training, Exit.FAILED, "failed", 1.0)
        for name in ("status.json", SLOTS_FILE, "processes.json", "summary.json"):
            assert (tmp_path / name).exists(), name
    finally:
        processes.stop()


def test_a_run_that_cannot_begin_for_lack_of_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full(monkeypatch), pytest.raises(SpecError, match="No space left on device; give a"):
        run.prepare(run_file(job()), expected(job()), tmp_path, "a manifest", resume=False)
    assert [*tmp_path.iterdir()] == []
    assert run.prepare(run_file(job()), expected(job()), tmp_path, "a manifest", resume=False)


def test_the_newest_words_of_a_log_are_kept_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "logs" / "a-0.log")
    with full(monkeypatch):
        assert keeper.written(path, b"hello") == b"hello"
    assert keeper.written(path, b"hello") == b""
    assert Path(path).read_bytes() == b"hello"

    monkeypatch.setattr(keeper, "WAITING_BYTES_MAX", 3)
    tries = iter([True, True, False])
    real = keeper.written
    monkeypatch.setattr(
        keeper, "written", lambda path, text: text if next(tries) else real(path, text)
    )
    source, sink = os.pipe()
    os.write(sink, b"12345")
    os.close(sink)
    monkeypatch.setattr(keeper, "READ_BYTES", 4)
    keeper.keep(source, path)
    os.close(source)
    assert Path(path).read_bytes() == b"hello" + b"345"


def test_a_process_that_prints_to_a_full_disk_goes_on(tmp_path: Path) -> None:
    """It ended at its first `print`."""
    (tmp_path / "logs").write_text("no folder")
    script = "print('x' * 100_000, flush=True); print('end', flush=True)"
    printing = subprocess.Popen(
        [sys.executable, keeper.__file__, tmp_path / "logs" / "a-0.log"], stdin=subprocess.PIPE
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=printing.stdin, check=False)
    assert done.returncode == 0
    printing.communicate(timeout=60)
    assert printing.returncode == 0


def test_what_is_appended_is_whole_pieces_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WAITING_BYTES_MAX", 10)
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
