"""The transport process gives way to the training thread that it serves, also at the end."""

import os
import signal
import time
from pathlib import Path

from atoll_worker.training import process

SECONDS_MAX = 60.0


def ignored(pid: int) -> set[signal.Signals]:
    """The signals that a process ignores."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:"))
    return {each for each in (signal.SIGINT, signal.SIGTERM) if mask >> (each - 1) & 1}


def test_the_real_transport_outlives_signals_and_does_not_preempt_who_woke_it() -> None:
    memory = os.memfd_create("memory")
    child, link = process.start(memory)
    os.close(memory)
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while os.sched_getscheduler(child.pid) != os.SCHED_BATCH:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert ignored(child.pid) == {signal.SIGINT, signal.SIGTERM}
        assert os.getpgid(child.pid) == child.pid, "a terminal's Ctrl-C would end it"
    finally:
        process.abandon(child, link)
