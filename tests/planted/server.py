"""A process that runs pytest again and again, each time in a child: heavy libraries load once.

It reads one line of JSON for each run (`words` for pytest, `output` a file, `seconds_max`) and
answers with pytest's exit status, or -1 when the time was up. It imports nothing of Atoll's and no
plugin of pytest, so each child sees the files as they are then.
"""

import json
import os
import signal
import sys
import time

import grpc.aio  # noqa: F401
import ml_dtypes  # noqa: F401
import pytest
import torch  # noqa: F401

LOOK_SECONDS = 0.02


def child(words: list[str], output: str) -> None:
    """Never returns."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    status = 3  # pytest's word for an internal error
    try:
        status = int(pytest.main(words))
    finally:
        sys.stdout.flush()
        os._exit(status)


def wait(pid: int, seconds_max: float) -> int:
    """The exit status, or -1."""
    end, found = time.monotonic() + seconds_max, 0
    try:
        while time.monotonic() < end:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(LOOK_SECONDS)
    finally:  # also when this process is told to end
        if not found:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return -1


def main() -> None:
    """Until standard input ends, or SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            child(job["words"], job["output"])
        os.setpgid(pid, pid)
        sys.stdout.write(f"{wait(pid, job['seconds_max'])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
