"""What an owner of values has: shared memory, staging into it, and the process beside it.

Of a learner of one process the only one owns all values; of several ranks the first one of each
host owns its *parts* of every slice (docs/protocol.md, rule 32). Beside every owner runs a process
that sends and receives them: the transport process beside the head, a lane process beside each
other one. Both are told of what is in the memory by the same messages.

Theory of operation
-------------------
On an accelerator nothing of a boundary's work is finished when the call returns. The copies are put
in line on the device, in order with the user's own work, and each gives a *ticket* (staging.py),
which tells when it is done. A boundary therefore passes through these states:

    copies in line      report()                  settle(): all its tickets are done
   ------------------> work -------------> pending ---------------------------------> sent

A Boundary message is sent only when everything that it names is done, and never before an older
one. Thus the process beside this one may read a capture region as soon as it receives a Boundary
that names it, and may write an adopt region again in the same way. On a CPU each copy is done at
once, so that every Boundary leaves in `report` itself.

Invariants:
1. The counter of a capture region is odd from the moment a copy is put in line until the last copy
   of that slice is settled. `copies_under_way` counts them, since a device may be slow enough that
   a second copy is put in line before the first is done.
2. `pending` is in the order of the boundaries; `settle` stops at the first that is not done.
"""

import os
import subprocess
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
import torch
from torch import Tensor

from atoll_protos.codecs import Packed
from atoll_protos.layout import Layout
from atoll_protos.parts import Share
from atoll_protos.tensors import from_bytes, packed
from atoll_worker.errors import TransportLostError
from atoll_worker.link import memory, messages
from atoll_worker.link.codec import LinkError
from atoll_worker.link.memory import Memory, Plan
from atoll_worker.link.socket import Link
from atoll_worker.settings import Job
from atoll_worker.training import process
from atoll_worker.training.obeying import BoundaryWork, Key
from atoll_worker.training.process import TransportProcess
from atoll_worker.training.staging import Pairs, Staging, Ticket, staging_for

EXIT_CODE_SECONDS_MAX = 10.0  # from the end of its link to its exit code, on a busy machine
LOOK_SECONDS = 1.0  # of one wait for a first message; it is repeated

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Owner:
    """See the module."""

    memory: Memory
    staging: Staging
    link: Link
    process: subprocess.Popen[bytes]
    memory_fd: int = -1  # of the file in which a companion is given
    pending: deque[tuple[messages.Boundary, BoundaryWork]] = field(default_factory=deque)
    copies_under_way: Counter[Key] = field(default_factory=Counter)  # captures not yet settled

    def capture(self, key: Key, pairs: Callable[[Packed[Tensor]], Pairs]) -> Ticket:
        """Put the copy of a slice into its capture region in line.

        `pairs` gives views of the values beside those of the region.
        """
        if not self.copies_under_way[key]:
            self.memory.turn(*key)
        self.copies_under_way[key] += 1
        region = packed(self.memory.capture(*key), memory.CAPTURE_ENCODING, self.memory.form(*key))
        return self.staging.capture(pairs(region))

    def capture_now(self, key: Key, pairs: Callable[[Packed[Tensor]], Pairs]) -> None:
        """Copy a slice into its capture region, and wait for it; no Boundary tells of that."""
        self.capture(key, pairs).wait()
        self._end_capture(key)

    def arrived(self, key: Key) -> Packed[Tensor]:
        """The values that are in the adopt region of a slice."""
        encoding = self.memory.adopt_encoding(*key)
        return packed(self.memory.adopt(*key), encoding, self.memory.form(*key))

    def companion_file(self, *, changed: bool) -> tuple[int, int]:
        """The file in which a companion is given, and where in it."""
        return self.memory_fd, memory.companion_offset(self.memory.plan, changed=changed)

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
                self._end_capture(key)
            self.send(boundary)
            self.pending.popleft()
        self.link.flush()

    def send(self, message: messages.Message) -> None:
        """Send; raises TransportLostError if the process has not read for a very long time."""
        try:
            self.link.send(message)
        except LinkError as error:
            raise TransportLostError(f"{error}; start this process again") from error

    def listening(self) -> int:
        """The port on which the head's transport waits for the lane processes; waits for it.

        It is the first that the transport says. Raises TransportLostError if it ends before.
        """
        while (said := self.link.next()) is None:
            if self.link.closed:
                raise self.lost("transport process")
            self.link.wait(LOOK_SECONDS)
            self.link.fill()
        assert isinstance(said, messages.Listening), f"{said} came before Listening"
        return said.port

    def lost(self, what: str) -> TransportLostError:
        """The error of a rank beside which this process has ended."""
        how = self._how_it_ended()
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
            process.stop(self.process, self.link)
            self.staging.close()
            if self.memory_fd >= 0:
                os.close(self.memory_fd)
                self.memory_fd = -1

    def _settle_what_ends(self) -> None:
        """Settle all, but for what a device that has failed does not end: it fails once more.

        The job is told why this process leaves; the error to be seen is that in the user's code.
        """
        try:
            self.settle(wait=True)
        except TransportLostError:
            raise
        except RuntimeError as error:
            log.warning("the device does not end its copies", trouble=str(error))

    def _end_capture(self, key: Key) -> None:
        self.copies_under_way[key] -= 1
        if not self.copies_under_way[key]:
            self.memory.turn(*key)

    def _how_it_ended(self) -> str:
        try:
            return f"exit code {self.process.wait(EXIT_CODE_SECONDS_MAX)}"
        except subprocess.TimeoutExpired:
            return "it closed its link"


def owner_of(child: TransportProcess, plan: Plan, device: torch.device) -> Owner:
    """The owner with this process beside it, which waits for Configure."""
    shared = child.attach(plan)
    return Owner(
        memory=shared,
        staging=staging_for(device, from_bytes(shared.whole(), torch.uint8)),
        link=child.link,
        process=child.process,
        memory_fd=child.memory_fd,
    )


def configuration(job: Job, instance: str, layout: Layout, share: Share) -> messages.Configure:
    """What each process beside an owner is told; the caller adds what only some are."""
    return messages.Configure(
        run_file=job.run_file.to_json(),
        tensors=layout.tensors,
        layout_digest=layout.digest,
        slot=job.slot,
        uid=job.uid,
        instance=instance,
        endpoints=job.endpoints,
        tls_folder=job.tls_folder,
        telemetry_folder=job.telemetry_folder,
        observer=not job.slot,
        lanes=share.parts,
        own_lanes=None if share.is_whole else (share.first, share.stop),
        training_pid=os.getpid(),
    )
