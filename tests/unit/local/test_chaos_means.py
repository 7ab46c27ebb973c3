"""Faults are made of real processes and folders, and taken back."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll_operator.local.chaos import means
from atoll_operator.local.chaos.means import NotMadeError

SECONDS_MAX = 60.0
SLEEPS = "import time; time.sleep(600)"
STARTS = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", {SLEEPS!r}], start_new_session=True).pid, flush=True)
time.sleep(600)
"""
WRITES = """
import errno, sys
file = open(sys.argv[1], "ab", buffering=0)
for line in sys.stdin:
    try:
        file.write(b"x")
        print("written", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """A child of a run, whose process is this script."""
    started = []

    def begin(script: str, *arguments: object) -> Any:
        words = [sys.executable, "-c", script, *map(str, arguments)]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        started.append(process)
        return SimpleNamespace(process=process)

    yield begin
    for process in started:
        with process:
            process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_pause_stops_a_process_with_all_that_it_has_started(start: Callable[..., Any]) -> None:
    child = start(STARTS)
    pids = [child.process.pid, int(child.process.stdout.readline())]
    try:
        assert means.processes_of([child]) == pids
        with means.paused([child]):
            until(lambda: all(state(pid) == "T" for pid in pids))
        until(lambda: all(state(pid) != "T" for pid in pids))
    finally:
        os.kill(pids[1], signal.SIGKILL)
    child.process = None
    with pytest.raises(NotMadeError, match="it did not run"), means.paused([child]):
        pytest.fail("there is nothing to pause")


def test_a_slow_process_stands_and_runs_in_turn(start: Callable[..., Any]) -> None:
    child = start(SLEEPS)
    with means.slowed([child], 0.5):
        for _ in range(3):
            until(lambda: state(child.process.pid) == "T")
            until(lambda: state(child.process.pid) != "T")
    until(lambda: state(child.process.pid) != "T")


def test_a_full_disk_refuses_each_write_also_of_the_next_process(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    def wrote(child: Any) -> str:
        child.process.stdin.write("\n")
        return str(child.process.stdout.readline().strip())

    def limited(child: Any) -> bool:
        return resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE)[0] == 0

    child = start(WRITES, tmp_path / "file")
    assert wrote(child) == "written"
    with means.full_disk(child):
        until(lambda: limited(child))
        assert wrote(child) == errno.errorcode[errno.EFBIG]
        first, child.process = child.process, start(WRITES, tmp_path / "other").process
        until(lambda: limited(child))
        assert wrote(child) == errno.errorcode[errno.EFBIG]
    assert wrote(child) == "written"
    assert first.poll() is None


def store_of(tmp_path: Path) -> Path:
    """A shard's folder; its newest file is `objects/2`."""
    store = tmp_path / "commits" / "0"
    for number, name in enumerate(["log/1", "log/2", "objects/1", "objects/2", "tmp/3"]):
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0123456789")
        os.utime(path, ns=(number, number))
    return store


def test_a_lost_store_comes_back_and_never_in_the_place_of_another(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    with means.lost_store(store):
        assert not store.exists()
        with pytest.raises(NotMadeError), means.lost_store(store):
            pytest.fail("it is away already")
    assert (store / "objects/2").read_bytes() == b"0123456789"
    with pytest.raises(FileExistsError, match="a new one"), means.lost_store(store):
        store.mkdir()
    assert [*store.iterdir()] == []
    means.put_back_all(store.parent)  # likewise of a run that was killed
    assert [*store.iterdir()] == []
    store.rmdir()
    means.put_back_all(store.parent)
    assert (store / "objects/2").exists()


def test_damage_hits_the_newest_object_or_entry(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    means.flip_byte(store)
    assert (store / "objects/2").read_bytes() == b"0123446789"
    os.utime(store / "log/1", ns=(1 << 62, 1 << 62))
    means.truncate(store)
    assert (store / "log/1").read_bytes() == b"01234"
    assert (store / "log/2").read_bytes() == b"0123456789"
    means.empty(store)
    assert [*store.iterdir()] == []
    with pytest.raises(NotMadeError, match="its folder has no object and no entry"):
        means.flip_byte(store)
