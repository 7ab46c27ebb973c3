"""What an owner of values has: shared memory, staging into it, and the process beside it.

The only process of a learner owns all values; of several ranks the head does (rule 32). Beside it
runs the transport process.

On an accelerator nothing of a boundary's work is finished when the call returns: each copy gives a
*ticket* (staging.py). A Boundary is sent only when everything that it names is done, and never
before an older one: `report` puts it into `pending`, and `settle` sends it. So the process beside
this one may use the regions that a Boundary names as soon as it receives it.

The counter of a capture region is odd from the moment a copy is put in line until the last copy of
that slice is settled: a device may be slow enough that a second copy is put in line before the
first is done (`copies_under_way`).
"""

import os
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import structlog
import torch
from torch import Tensor

from atoll_protos import allocator
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.codecs import Packed
from atoll_worker.errors import TransportLostError
from atoll_worker.job import Job
from atoll_worker.link import messages, shared_memory
from atoll_worker.link.shared_memory import CAPTURE_ENCODING, MemoryPlan, SharedMemory, memory_plan
from atoll_worker.link.socket import Link, LinkError
from atoll_worker.model.parameters import from_bytes, packed
from atoll_worker.model.staging import DirectStaging, Pairs, staging_for
from atoll_worker.model.tickets import Ticket
from atoll_worker.training.boundary import BoundaryWork, Key

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


def stop(process: subprocess.Popen[bytes], link: Link) -> None:
    """Let it send what it has, and kill it when that takes long."""
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


log = structlog.get_logger()


EXIT_CODE_SECONDS_MAX = 10.0  # from the end of its link to its exit code, on a busy machine


@dataclass(slots=True, kw_only=True)
class TrainingOwner:
    """See the module."""

    child: TransportProcess
    memory: SharedMemory
    staging: DirectStaging
    pending: deque[tuple[messages.Boundary, BoundaryWork]] = field(default_factory=deque)
    copies_under_way: Counter[Key] = field(default_factory=Counter)  # captures not yet settled

    @property
    def link(self) -> Link:
        return self.child.link

    def capture(self, key: Key, pairs: Callable[[Packed[Tensor]], Pairs]) -> Ticket:
        """Put a copy in line; `pairs` gives views of the values beside those of the region."""
        if not self.copies_under_way[key]:
            self.memory.turn(*key)
        self.copies_under_way[key] += 1
        region = packed(self.memory.capture(*key), CAPTURE_ENCODING, self.memory.form(*key))
        return self.staging.capture(pairs(region))

    def arrived(self, key: Key) -> Packed[Tensor]:
        encoding = self.memory.adopt_encoding(*key)
        return packed(self.memory.adopt(*key), encoding, self.memory.form(*key))

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        """Send the Boundary as soon as its work is done; with `wait`, block until it is."""
        self.pending.append((boundary, work))
        self.settle(wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        """Send, in order, the Boundaries whose work is done; with `wait`, all of them."""
        while self.pending:
            boundary, work = self.pending[0]
            if wait:
                work.wait()
            elif not work.done():
                break
            for key in work.captured:
                self.end_capture(key)
            self.send(boundary)
            self.pending.popleft()
        self.link.flush()

    def send(self, message: messages.Message) -> None:
        """Raises TransportLostError if the process has not read for a very long time."""
        try:
            self.link.send(message)
        except LinkError as error:
            raise TransportLostError(f"{error}; start this process again") from error

    def lost(self, what: str) -> TransportLostError:
        try:
            how = f"exit code {self.child.process.wait(EXIT_CODE_SECONDS_MAX)}"
        except subprocess.TimeoutExpired:
            how = "it closed its link"
        return TransportLostError(f"the {what} has ended ({how}); start this one again")

    def leave(self, reason: str) -> None:
        """Settle, send Leaving, and wait for the process beside this one to end."""
        try:
            if not self.link.closed:
                self._settle_what_ends()
                self.send(messages.Leaving(reason=reason))
        except TransportLostError:
            pass  # it has not read for a long time: process.stop kills it
        finally:
            stop(self.child.process, self.link)
            self.staging.close()
            self.child.close_memory()

    def _settle_what_ends(self) -> None:
        """Settle all, but for a failed device: the error to be seen is that in the user's code."""
        try:
            self.settle(wait=True)
        except TransportLostError:
            raise
        except RuntimeError as error:
            log.warning("the device does not end its copies", trouble=str(error))

    def end_capture(self, key: Key) -> None:
        self.copies_under_way[key] -= 1
        if not self.copies_under_way[key]:
            self.memory.turn(*key)


@contextmanager
def opened_owner(job: Job, layout: Layout, device: torch.device) -> Iterator[TrainingOwner]:
    """Its process gets ready while the model is copied; nothing is left if the body fails."""
    child = begin()
    with ExitStack() as undo:
        undo.callback(child.abandon)
        plan = memory_plan(layout, job.run_file.sync, observer=not job.slot)
        memory = child.attach(plan)
        staging = staging_for(device, from_bytes(memory.whole(), torch.uint8))
        undo.callback(staging.close)
        yield TrainingOwner(child=child, memory=memory, staging=staging)
        undo.pop_all()


def configuration(job: Job, layout: Layout) -> messages.Configure:
    return messages.Configure(
        run_file=job.run_file,
        layout=layout,
        slot=job.slot,
        uid=job.uid,
        instance=job.instance,
        endpoints=job.endpoints,
        tls_folder=job.tls_folder,
        telemetry_folder=job.telemetry_folder,
        observer=not job.slot,
        lanes=job.lanes,
    )
