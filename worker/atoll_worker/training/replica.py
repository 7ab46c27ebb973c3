"""A model, its shared memory and its link to the transport: commands are carried out here.

Theory of operation
-------------------
A replica changes the model at *step boundaries* only, which are the calls that Learner makes after
an optimizer step (and before the first one, and while it waits in lock-step modes). Between two
boundaries the model belongs to the user's code.

At a boundary, `apply_commands` reads all commands that the transport has sent since the last one
and carries them out in a fixed order (obeying.py).

Of a learner of several processes this is the *head*. It shares what it draws from its link with the
other ranks, and instead of its own tensors it copies what all ranks hold together: values are
gathered before a capture and dealt out at an adoption. The other ranks are followers (follower.py).

On an accelerator nothing of this is finished when the call returns. The copies are put in line on
the device, in order with the user's own work, and each gives a *ticket* (staging.py), which tells
when it is done. A boundary therefore passes through these states:

    apply_commands()       report()                  settle(): all its tickets are done
   ------------------> work -------------> pending ---------------------------------> sent

A Boundary message is sent only when everything that it names is done, and never before an older
one. Thus the transport may read a capture region as soon as it receives a Boundary that names it,
and may write an adopt region again in the same way. On a CPU each copy is done at once, so that
every Boundary leaves in `report` itself.

Invariants:
1. The counter of a capture region is odd from the moment a copy is put in line until the last copy
   of that slice is settled. `copies_under_way` counts them, since a device may be slow enough that
   a second copy is put in line before the first is done.
2. `pending` is in the order of the boundaries; `settle` stops at the first that is not done.
3. `tick` never goes back, whatever order Tick and Start arrive in.

Who drives it: Learner and Observer. They call `apply_commands` and then `report` at every boundary
(with `wait=True` where the thread has nothing else to do), and `leave` exactly once.
"""

import os
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial

import structlog
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.layout import AVERAGE, TensorSpec
from atoll_protos.tensors import from_bytes, packed
from atoll_worker.errors import TransportLostError
from atoll_worker.link import memory, messages
from atoll_worker.link import socket as links
from atoll_worker.link.codec import LinkError
from atoll_worker.link.memory import Memory
from atoll_worker.link.socket import Link
from atoll_worker.ranks.group import Group
from atoll_worker.ranks.reading import Reader
from atoll_worker.settings import Job
from atoll_worker.training import process
from atoll_worker.training.checksums import PLAIN_READER
from atoll_worker.training.companion import Companion, companion_of
from atoll_worker.training.naming import cleaner
from atoll_worker.training.obeying import BoundaryWork, Key, Obeying
from atoll_worker.training.parameters import Place, pairs, travelling
from atoll_worker.training.staging import Pairs, Scalar, Staging, Ticket, assign, staging_for
from atoll_worker.training.undone import Watch
from atoll_worker.training.unshared import Unshared, unshared_of

POLL_SECONDS = 0.2  # a waiting thread looks for SIGTERM this often
EXIT_CODE_SECONDS_MAX = 10.0  # from the end of its link to its exit code, on a busy machine

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Replica(Obeying):
    """See the module's theory of operation. `places` are in the order of the layout's tensors."""

    places: Sequence[Place]
    memory: Memory
    staging: Staging
    link: Link
    process: subprocess.Popen[bytes]
    ranks: Group | None = None  # of this learner, if it has several; this is the head
    memory_fd: int = -1  # of the file in which a companion is given
    companion: Companion | None = None
    unshared: Unshared | None = None
    watch: Watch | None = None  # whether the optimizer's steps undo what is adopted
    pending: deque[tuple[messages.Boundary, BoundaryWork]] = field(default_factory=deque)
    copies_under_way: Counter[Key] = field(default_factory=Counter)  # captures not yet settled

    def step_made(self) -> None:
        """A step was made on what is adopted. Raises SpecError if it has undone it; see `watch`."""
        if self.watch is not None and (reason := self.watch.judge()):
            self.warn(reason)
        if self.unshared is not None and (reason := self.unshared.step_made()):
            self.warn(reason)

    def apply_commands(self) -> BoundaryWork:
        """Carry out all commands that have arrived; never waits. See `Obeying.obey`.

        Raises LearnerError when the job refuses this process, and TransportLostError when the
        transport process is gone.
        """
        work = self.obey(self.ranks.commands() if self.ranks else self.link.receive())
        closed = self.ranks.closed if self.ranks else self.link.closed
        if closed and not self.finished:
            raise TransportLostError(
                f"the transport process has ended ({self._how_it_ended()}); start this one again"
            )
        return work

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

    def capture(self, key: Key) -> Ticket:
        """Put the copy of a slice into its capture region in line."""
        if not self.copies_under_way[key]:
            self.memory.turn(*key)
        self.copies_under_way[key] += 1
        owned = self.slices[key]
        region = packed(self.memory.capture(*key), memory.CAPTURE_ENCODING, owned.form)
        if self.ranks is None:
            return self.staging.capture(pairs(self.places, owned, region))
        values = self.ranks.gather(owned)
        assert values is not None, "this rank is not the head"
        return self.staging.capture(self.ranks.flat(values, region))

    def capture_seed(self) -> None:
        """Fill every capture region with the model as it is, which may become version 0."""
        for key in self.slices:
            self.capture(key).wait()
            self._end_capture(key)

    def wait(self, seconds_max: float) -> None:
        """Return when a command has come, after `seconds_max` at the latest."""
        self.link.wait(seconds_max)

    def scalar(self, value: Tensor) -> Scalar:
        """Read a one-element tensor, behind the step; see Staging."""
        return self.staging.scalar(value)

    def leave(self, reason: str) -> None:
        """Settle, send Leaving, and wait for the transport process to end."""
        try:
            if not self.link.closed:
                self._settle_what_ends()
                self.send(messages.Leaving(reason=reason))
        except TransportLostError:
            pass  # it has not read for a long time: process.stop kills it
        finally:
            self.trust()
            process.stop(self.process, self.link)
            self.staging.close()
            if self.memory_fd >= 0:
                os.close(self.memory_fd)
                self.memory_fd = -1

    def send(self, message: messages.Message) -> None:
        """Send; raises TransportLostError if the transport has not read for a very long time."""
        try:
            self.link.send(message)
        except LinkError as error:
            raise TransportLostError(f"{error}; start this process again") from error

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Put the values of a slice into the model, in line."""
        self.held.add(key)
        work.assigned[key] = None
        owned = self.slices[key]
        region = packed(self.memory.adopt(*key), self.memory.adopt_encoding(*key), owned.form)
        if self.ranks is None:
            parts: Pairs = pairs(self.places, owned, region)
            averaged = [self.specs[each.tensor].merge == AVERAGE for each in owned.pieces]
        else:
            values = self.ranks.empty(owned)
            work.tickets.append(self.staging.adopt(self.ranks.flat(values, region), 0.0))
            parts, averaged = self.ranks.deal(owned, values)
        watch = None if self.finished else self.watch
        sample = watch.before(parts, averaged) if watch else None
        if self.ranks is None:
            work.tickets.append(self.staging.adopt(parts, blend))
        else:
            assign(parts, blend)
            self.ranks.written()
        if watch and sample:
            watch.after(sample)

    def trust(self) -> None:
        """The optimizer is told of adoptions: whether it undoes them is not looked at any more."""
        if self.watch is not None:
            self.watch.end()
            self.watch = None

    def warn(self, reason: str) -> None:
        """Tell the user, in the log and in the run folder."""
        log.warning(reason)
        self.send(messages.Warned(reason=reason))

    def give(self, *, changed: bool) -> None:
        """Put the companion where the transport reads it; the device is read at once.

        Training never ends for want of memory for it.
        """
        if self.companion is None:
            return
        offset = memory.companion_offset(self.memory.plan, changed=changed)
        try:
            with self._reading(self.companion) as reader:
                count = self.companion.write(self.memory_fd, offset, changed=changed, reader=reader)
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            self.warn(f"the export will lack what does not travel: {error!r}")
            return
        self.send(messages.Companion(changed=changed, byte_count=count))
        if self.companion.stale:
            self.warn(self.companion.warning)

    def _reading(self, companion: Companion) -> AbstractContextManager[Reader]:
        """What the companion's tensors are read by."""
        if self.ranks is None:
            return nullcontext(PLAIN_READER)
        return self.ranks.reading(companion.models, cleaner)

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


def open_replica(
    model: nn.Module,
    job: Job,
    instance: str,
    *,
    observer: bool = False,
    export_files: Sequence[object] = (),
    optimizers: Sequence[Optimizer] = (),
) -> Replica:
    """Start the transport process, lay the model out, and capture its first value as a seed.

    `instance` names this opening, as no other is named.

    Raises SpecError if the model cannot travel (see `parameters.travelling`). If anything fails,
    no process and no memory is left behind.
    """
    places = travelling(model, job.run_file.sync.mean_patterns)
    specs = tuple(place.spec for place in places)
    companion = None if observer else partial(companion_of, [model], places, export_files)
    unshared = None if observer else unshared_of([model], places, optimizers)
    return _opened(
        job, instance, places, specs, companion=companion, unshared=unshared, observer=observer
    )


def open_head(
    models: Sequence[nn.Module],
    job: Job,
    instance: str,
    ranks: Group,
    *,
    places: Sequence[Place],
    specs: tuple[TensorSpec, ...],
    export_files: Sequence[object] = (),
    optimizers: Sequence[Optimizer] = (),
) -> Replica:
    """As `open_replica`, on the head of several ranks, whose tensors together are `specs`."""

    def companion() -> Companion:
        with ranks.reading(models, cleaner) as reader:
            return companion_of(models, places, export_files, reader)

    return _opened(
        job,
        instance,
        places,
        specs,
        companion=companion,
        unshared=unshared_of(models, places, optimizers),
        ranks=ranks,
    )


def _opened(
    job: Job,
    instance: str,
    places: Sequence[Place],
    specs: tuple[TensorSpec, ...],
    *,
    companion: Callable[[], Companion] | None,
    unshared: Unshared | None,
    ranks: Group | None = None,
    observer: bool = False,
) -> Replica:
    """The replica and its transport process, which is told what the model looks like."""
    run_file = job.run_file
    layout, device = run_file.layout(specs), places[0].tensor.device
    child = process.take()  # it gets ready while the model is copied
    with ExitStack() as undo:
        undo.callback(child.abandon)
        made = companion() if companion else None
        plan = links.memory_plan(layout, run_file.sync, observer=observer)
        shared = child.attach(plan)
        staging = staging_for(device, from_bytes(shared.whole(), torch.uint8))
        if ranks is not None:
            ranks.follow(child.link)
        replica = Replica(
            places=places,
            specs=specs,
            slices={(each.shard, each.fragment): each for each in layout.slices},
            memory=shared,
            staging=staging,
            link=child.link,
            process=child.process,
            ranks=ranks,
            memory_fd=child.memory_fd,
            companion=made,
        )
        if not observer:
            replica.capture_seed()
        if unshared is not None:
            replica.watch = Watch(staging=staging)
            replica.watch.begin()
            undo.callback(replica.watch.end)
            replica.unshared = unshared
        child.link.send(
            messages.Configure(
                run_file=run_file.to_json(),
                tensors=specs,
                layout_digest=layout.digest,
                slot=job.slot,
                uid=job.uid,
                instance=instance,
                endpoints=job.endpoints,
                tls_folder=job.tls_folder,
                telemetry_folder=job.telemetry_folder,
                observer=observer,
                frozen_digest=made.frozen_digest if made else "",
                has_companion=made is not None,
                lanes=1 if observer else job.lanes,
                training_pid=os.getpid(),
            )
        )
        undo.pop_all()
    if made is not None and made.warning:
        replica.warn(made.warning)
    return replica
