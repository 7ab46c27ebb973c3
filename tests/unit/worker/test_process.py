"""The transport process: when it starts, that it gives way, and that none is left over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from atoll_worker.training import replica

SECONDS_MAX = 60.0


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
    child = replica.begin()
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
from atoll_worker.training import replica
child = replica.begin()
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
