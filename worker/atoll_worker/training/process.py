"""Starts and stops the transport process.

When it is started
------------------
The transport process takes some 0.3 s of CPU until it can serve. It needs the model's layout only
after that, so it starts before the model is there, and gets ready on another core meanwhile:

- `atoll-worker MODULE:FUNCTION` calls `prepare` before it imports the user's module, which
  imports torch. The Learner or Observer that is entered first takes this process.
- In a script of the user's own it is started when a Learner or Observer is entered: before the
  model is laid out, the shared memory is made and the first values are copied into it. Importing
  `atoll` starts nothing: a data loader's workers, a test or a notebook import it as well.

At first the process knows only two descriptors: its end of the link and a memory file without any
bytes. It waits for Configure, which comes when the memory file has its size and its first values.

No process is left over
-----------------------
A process that is never taken is ended by `discard`, and if the training process dies before that,
the transport sees its link closed, or that its parent is another one, and ends by itself. A fork
of the training process never takes what its parent has prepared (`TransportProcess.owner`).
"""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from atoll_protos import allocator
from atoll_worker.link import memory
from atoll_worker.link.memory import Memory, Plan
from atoll_worker.link.socket import Link

# -P: the folder that we happen to be in is not searched for modules
PROGRAM = (sys.executable, "-P", "-m", "atoll_worker.transport")
THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's linear algebra is not used there
LEAVE_SECONDS_MAX = 10.0  # for a Leave to reach every shard; a pod has 30 s to stop


@dataclass(slots=True, kw_only=True)
class TransportProcess:
    """A transport process that waits for Configure, and what belongs to it on our side."""

    process: subprocess.Popen[bytes]
    link: Link
    memory_fd: int  # the memory file; who takes the process closes it
    owner: int = field(default_factory=os.getpid)  # the process that has started it

    def attach(self, plan: Plan) -> Memory:
        """Give the memory file the plan's size and map it; once. Its descriptor stays open."""
        memory.resize(self.memory_fd, plan)
        return memory.attach(plan, self.memory_fd)

    def abandon(self) -> None:
        """End a process that has not begun."""
        self.link.close()
        self._close_memory()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()

    def _close_memory(self) -> None:
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1


_prepared: list[TransportProcess] = []  # at most one


def prepare() -> None:
    """Start the process for the Learner or Observer that will be entered first."""
    discard()
    _prepared.append(begin())


def take() -> TransportProcess:
    """The prepared process, or one that is started now."""
    while _prepared:
        prepared = _prepared.pop()
        if prepared.owner == os.getpid() and prepared.process.poll() is None:
            return prepared
        prepared.abandon()
    return begin()


def discard() -> None:
    """End the prepared process if nothing has taken it."""
    while _prepared:
        _prepared.pop().abandon()


def begin() -> TransportProcess:
    """Start one with a memory file of its own."""
    descriptor = memory.create()
    try:
        process, link = start(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return TransportProcess(process=process, link=link, memory_fd=descriptor)


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
            env={**os.environ, **THREADS, **allocator.child_environment()},
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
