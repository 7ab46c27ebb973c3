"""Starts and stops the transport process."""

import os
import socket
import subprocess
import sys
import time

from atoll_protos import allocator
from atoll_worker.link.socket import Link

# -P: the folder that we happen to be in is not searched for modules
PROGRAM = (sys.executable, "-P", "-m", "atoll_worker.transport.transport")
LEAVE_SECONDS_MAX = 10.0  # for a Leave to reach every shard; a pod has 30 s to stop


def start(memory_fd: int) -> tuple[subprocess.Popen[bytes], Link]:
    """The process and the training process' end of its link.

    A fresh interpreter: a fork would copy the accelerator's and torch's state.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        descriptors = ("--link-fd", str(theirs.fileno()), "--memory-fd", str(memory_fd))
        process = subprocess.Popen(
            [*PROGRAM, *descriptors],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), memory_fd),
            env={**os.environ, **allocator.child_environment()},
            start_new_session=True,  # a terminal's Ctrl-C reaches the training process only
        )
    return process, Link(ours)


def stop(process: subprocess.Popen[bytes], link: Link) -> None:
    """After a Leaving: let it send what it has and exit by itself; kill it when that takes long."""
    deadline = time.monotonic() + LEAVE_SECONDS_MAX
    while link.unsent and not link.closed and time.monotonic() < deadline:
        link.wait(0.1)
        link.fill()
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    link.close()


def abandon(process: subprocess.Popen[bytes], link: Link) -> None:
    """End a process that has not begun."""
    link.close()
    process.kill()
    process.wait()
