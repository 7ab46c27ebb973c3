"""Starts and stops the transport process of a Learner or Observer that is entered."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

from atoll_protos import allocator
from atoll_protos.job.companion import WAITS_SECONDS
from atoll_worker.link import shared_memory
from atoll_worker.link.shared_memory import MemoryPlan, SharedMemory
from atoll_worker.link.socket import Link

# -P: the folder that we happen to be in is not searched for modules
PROGRAM = (sys.executable, "-P", "-m", "atoll_worker.transport_process")
THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's linear algebra is not used there
LEAVE_SECONDS_MAX = 10.0  # for a Leave to reach every shard; a pod has 30 s to stop


@dataclass(slots=True, kw_only=True)
class TransportProcess:
    """A transport process that waits for Configure, and what belongs to it on our side."""

    process: subprocess.Popen[bytes]
    link: Link
    memory_fd: int = -1  # the memory file

    def attach(self, plan: MemoryPlan) -> SharedMemory:
        """Give the memory file the plan's size and map it; once. Its descriptor stays open."""
        shared_memory.resize(self.memory_fd, plan)
        return shared_memory.attach(plan, self.memory_fd)

    def abandon(self) -> None:
        self.link.close()
        self.close_memory()
        self.process.kill()
        self.process.wait()

    def close_memory(self) -> None:
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1


def begin() -> TransportProcess:
    descriptor = shared_memory.create()
    try:
        process, link = start(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return TransportProcess(process=process, link=link, memory_fd=descriptor)


def start(memory_fd: int) -> tuple[subprocess.Popen[bytes], Link]:
    """A fresh interpreter: a fork would copy the accelerator's and torch's state."""
    ours, theirs = socket.socketpair()
    with theirs:
        descriptors = ("--link-fd", str(theirs.fileno()), "--memory-fd", str(memory_fd))
        process = subprocess.Popen(
            [*PROGRAM, *descriptors],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), memory_fd),
            env={**os.environ, **THREADS, **allocator.child_environment()},
            start_new_session=True,  # a terminal's Ctrl-C reaches the training process only
        )
    return process, Link(ours)


def stop(process: subprocess.Popen[bytes], link: Link, *, finished: bool = False) -> None:
    """Let it send what it has, and kill it when that takes long; `finished`: it owes the export."""
    deadline = time.monotonic() + LEAVE_SECONDS_MAX + WAITS_SECONDS * finished
    while link.unsent and not link.closed and time.monotonic() < deadline:
        link.wait(0.1)
        link.fill()
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    link.close()
