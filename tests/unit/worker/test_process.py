"""The transport process: when it starts, that it gives way, and that none is left over."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_protos import allocator, logs
from atoll_worker import __main__ as runner
from atoll_worker.link.socket import Link
from atoll_worker.training import process

SECONDS_MAX = 60.0
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that only sleep are started in place of transports; none must outlive the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(memory_fd: int) -> tuple[subprocess.Popen[bytes], Link]:
        assert os.fstat(memory_fd).st_size == 0
        ours, theirs = socket.socketpair()
        theirs.close()
        started.append(subprocess.Popen(SLEEP))
        return started[-1], Link(ours)

    monkeypatch.setattr(process, "start", start)
    try:
        yield started
        assert all(each.returncode is not None for each in started), "one is left over"
    finally:
        for each in started:
            each.kill()
            each.wait()


def ignored(pid: int) -> set[signal.Signals]:
    """The signals that a process ignores."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:"))
    return {each for each in (signal.SIGINT, signal.SIGTERM) if mask >> (each - 1) & 1}


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_real_transport_outlives_signals_and_does_not_preempt_who_woke_it() -> None:
    child = process.begin()
    pid = child.process.pid
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while os.sched_getscheduler(pid) != os.SCHED_BATCH:
            assert child.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ignored(pid) == {signal.SIGINT, signal.SIGTERM}
        assert os.getpgid(pid) == pid, "a terminal's Ctrl-C would end it"
    finally:
        child.abandon()


PARENT = """
import os, time
from atoll_worker.training import process
child = process.begin()
fork = os.fork()
if not fork:
    os.closerange(1, 3)  # or who reads them would wait for this process
    time.sleep(120)
    os._exit(0)
print(child.process.pid, fork, flush=True)
os._exit(0)
"""


def test_it_ends_with_its_training_process_although_a_fork_of_that_holds_the_link_open() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, check=True, timeout=200
    )
    transport, fork = map(int, done.stdout.split())
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while runs(transport):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert runs(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_what_is_prepared_is_taken_once(sleepers: list[subprocess.Popen[bytes]]) -> None:
    process.prepare()
    first, second = process.take(), process.take()
    assert [first.process, second.process] == sleepers
    first.abandon()
    second.abandon()


def test_what_nobody_takes_is_ended(sleepers: list[subprocess.Popen[bytes]]) -> None:
    process.prepare()
    process.prepare()
    process.discard()
    assert len(sleepers) == 2
    process.discard()


def test_a_process_that_has_died_is_not_taken(sleepers: list[subprocess.Popen[bytes]]) -> None:
    process.prepare()
    sleepers[0].kill()
    sleepers[0].wait()
    taken = process.take()
    assert taken.process is sleepers[1]
    taken.abandon()


def test_a_fork_takes_nothing_that_its_parent_has_prepared(
    sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    process.prepare()
    parent = os.getpid()
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: parent + 1)
        taken = process.take()
    assert taken.process is sleepers[1]
    assert sleepers[0].poll() is None, "it is its parent's to end"
    taken.abandon()
    sleepers[0].kill()
    sleepers[0].wait()


MODULE = """
from atoll_worker.training import process
at_import = list(process._prepared)
def train(): assert len(at_import) == 1
"""


@pytest.mark.parametrize(("run_file", "expected"), [("run.json", 0), (None, 70)])
def test_the_runner_starts_it_before_the_module_of_a_job_is_imported_and_ends_what_is_not_taken(
    sleepers: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_file: str | None,
    expected: int,
) -> None:
    (tmp_path / "early_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(logs, "configure", lambda: None)
    monkeypatch.setattr(allocator, "tune", lambda: True)
    if run_file is None:
        monkeypatch.delenv("ATOLL_RUN_FILE", raising=False)
    else:
        monkeypatch.setenv("ATOLL_RUN_FILE", run_file)
    try:
        assert runner.main(["early_module:train"]) == expected
    finally:
        sys.modules.pop("early_module", None)
    assert len(sleepers) == (run_file is not None)


def test_importing_atoll_starts_no_process(tmp_path: Path) -> None:
    program = "import atoll, os; print(open(f'/proc/self/task/{os.getpid()}/children').read())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ATOLL_RUN_FILE": str(tmp_path / "run.json")},
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert not done.stdout.strip()
