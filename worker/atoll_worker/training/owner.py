"""What an owner of values has: shared memory, staging into it, and the process beside it.

The only process of a learner owns all values; of several ranks the first of each host owns its
*parts* (rule 32). Beside the head runs the transport process, beside other owners a lane process.

On an accelerator nothing of a boundary's work is finished when the call returns: each copy gives a
*ticket* (staging.py). A Boundary is sent only when everything that it names is done, and never
before an older one: `report` puts it into `pending`, and `settle` sends it. So the process beside
this one may use the regions that a Boundary names as soon as it receives it.

The counter of a capture region is odd from the moment a copy is put in line until the last copy of
that slice is settled: a device may be slow enough that a second copy is put in line before the
first is done (`copies_under_way`).
"""

import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import structlog
import torch
from torch import Tensor

from atoll_protos.job.layout import Layout
from atoll_protos.transfer.codecs import Packed
from atoll_protos.transfer.division import Share
from atoll_worker.errors import TransportLostError
from atoll_worker.job import Job
from atoll_worker.link import messages, shared_memory
from atoll_worker.link.shared_memory import CAPTURE_ENCODING, SharedMemory, memory_plan
from atoll_worker.link.socket import LinkError
from atoll_worker.model.staging import DirectStaging, Pairs, staging_for
from atoll_worker.model.tensors import from_bytes, packed
from atoll_worker.model.tickets import Ticket
from atoll_worker.training import process
from atoll_worker.training.boundary import BoundaryWork, Key
from atoll_worker.training.process import TransportProcess

EXIT_CODE_SECONDS_MAX = 10.0  # from the end of its link to its exit code, on a busy machine
LOOK_SECONDS = 1.0  # of one wait for a first message; it is repeated

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class TrainingOwner(TransportProcess):
    """See the module."""

    memory: SharedMemory
    staging: DirectStaging
    pending: deque[tuple[messages.Boundary, BoundaryWork]] = field(default_factory=deque)
    copies_under_way: Counter[Key] = field(default_factory=Counter)  # captures not yet settled

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

    def companion_file(self, *, changed: bool) -> tuple[int, int]:
        return self.memory_fd, shared_memory.companion_offset(self.memory.plan, changed=changed)

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

    def listening(self) -> int:
        """Wait for the port on which the head's transport listens. Raises TransportLostError."""
        while (said := self.link.next()) is None:
            if self.link.closed:
                raise self.lost("transport process")
            self.link.wait(LOOK_SECONDS)
            self.link.fill()
        assert isinstance(said, messages.Listening), f"{said} came before Listening"
        return said.port

    def lost(self, what: str) -> TransportLostError:
        try:
            how = f"exit code {self.process.wait(EXIT_CODE_SECONDS_MAX)}"
        except subprocess.TimeoutExpired:
            how = "it closed its link"
        return TransportLostError(f"the {what} has ended ({how}); start this one again")

    def leave(self, reason: str, *, finished: bool) -> None:
        """Settle, send Leaving, and wait for the process beside this one to end."""
        try:
            if not self.link.closed:
                self._settle_what_ends()
                self.send(messages.Leaving(reason=reason))
        except TransportLostError:
            pass  # it has not read for a long time: process.stop kills it
        finally:
            process.stop(self.process, self.link, finished=finished)
            self.staging.close()
            self.close_memory()

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
def opened_owner(
    job: Job, layout: Layout, share: Share, device: torch.device
) -> Iterator[TrainingOwner]:
    """Its process gets ready while the model is copied; nothing is left if the body fails."""
    child = process.begin()
    with ExitStack() as undo:
        undo.callback(child.abandon)
        plan = memory_plan(layout, job.run_file.sync, observer=not job.slot, share=share)
        memory = child.attach(plan)
        staging = staging_for(device, from_bytes(memory.whole(), torch.uint8))
        undo.callback(staging.close)
        yield TrainingOwner(
            memory=memory,
            staging=staging,
            link=child.link,
            process=child.process,
            memory_fd=child.memory_fd,
        )
        undo.pop_all()


def configuration(job: Job, layout: Layout, share: Share) -> messages.Configure:
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
        lanes=share.parts,
        own_lanes=None if share.is_whole else (share.first, share.stop),
    )
