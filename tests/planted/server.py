"""A process that runs pytest again and again, each time in a child: heavy libraries load once.

It reads one line of JSON for each run (`words` for pytest, `output` a file, `seconds_max`) and
answers with pytest's exit status, or -1 when the time was up. It imports nothing of Atoll's and no
plugin of pytest, so each child sees the files as they are then. What is imported here is most of
what a short test would take: 2.5 s of CPU of 3.
"""

import gc
import json
import os
import signal
import sys
import time

import cryptography.x509  # noqa: F401
import google.protobuf.message  # noqa: F401
import grpc.aio  # noqa: F401
import hypothesis.stateful  # noqa: F401
import ml_dtypes  # noqa: F401
import prometheus_client  # noqa: F401
import pydantic.alias_generators  # noqa: F401
import pytest
import structlog.testing  # noqa: F401
import torch._dynamo  # by every optimizer that steps
import torch.distributed  # noqa: F401
import typer.testing  # noqa: F401
import yaml  # noqa: F401
from hypothesis import Phase, settings

LOOK_SECONDS = 0.02
# Hypothesis draws the same examples in each run, and does not look for a smaller one that fails.
settings.register_profile(
    "planted",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)


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


def serve() -> None:
    """Until standard input ends, or SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    gc.freeze()  # pytest collects garbage at its end: it need not look at all of torch
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            child(job["words"], job["output"])
        os.setpgid(pid, pid)
        sys.stdout.write(f"{wait(pid, job['seconds_max'])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        serve()
    finally:
        os._exit(0)  # what large libraries write when a process ends is of no use to anybody
