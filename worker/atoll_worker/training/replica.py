"""A model and what it shares with the transport process: commands are carried out here.

A replica changes the model at *step boundaries* only: in the calls that Learner makes after an
optimizer step, before the first one, and while it waits in lock-step modes. Of a learner of several
processes this is the *head* (rule 32), which owns all values and has the transport process: values
of all ranks are gathered before a capture and dealt out at an adoption. The other ranks are
*followers*: what they hold they give to the head, and take from it.

On an accelerator nothing of a boundary's work is finished when the call returns: each copy gives a
*ticket* (staging.py). A Boundary is sent only when everything that it names is done, and never
before an older one: `report` puts it into `pending`, and `settle` sends it. So the transport
process may use the regions that a Boundary names as soon as it receives it.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import structlog
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos import allocator
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.codecs import Packed
from atoll_worker.errors import TransportLostError
from atoll_worker.job import Job, say_alone
from atoll_worker.link import messages, shared_memory
from atoll_worker.link.messages import Start
from atoll_worker.link.shared_memory import CAPTURE_ENCODING, MemoryPlan, SharedMemory, memory_plan
from atoll_worker.link.socket import Link, LinkError
from atoll_worker.model.parameters import (
    device_of,
    from_bytes,
    frozen_digest,
    is_one,
    packed,
    pairs,
    travelling,
    travelling_of,
)
from atoll_worker.model.staging import DirectStaging, Pairs, Scalar, assign, staging_for
from atoll_worker.model.tickets import Done, Ticket
from atoll_worker.ranks.group import Group
from atoll_worker.ranks.redistribution import TravellingTensor, flat_pairs
from atoll_worker.script import optimizers, refusals
from atoll_worker.script.refusals import Unshared
from atoll_worker.training.boundary import BoundaryWork, JobState, Key

log = structlog.get_logger()

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
    """Start a fresh interpreter: a fork would copy the accelerator's and torch's state."""
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
        """Raise TransportLostError if the process has not read for a very long time."""
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


def configuration(job: Job, layout: Layout, frozen_digest: str) -> messages.Configure:
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
        frozen_digest=frozen_digest,
        lanes=job.lanes,
    )


POLL_SECONDS = 0.2  # a waiting thread looks for SIGTERM this often


@dataclass(slots=True, kw_only=True)
class Replica:
    """What this process has of a learner or observer; see the module.

    Learner and Observer call `apply_commands` and then `report` at every boundary. `report` has
    `wait=True` where the thread has nothing else to do. `leave` comes exactly once.
    """

    state: JobState
    places: Sequence[TravellingTensor] = ()  # in the order of the layout's tensors
    owner: TrainingOwner | None = None  # of the values, which speaks with the job; None: no head
    ranks: Group | None = None  # of this learner, if it has several
    alone_steps: int | None = None  # without a job: its length; every step is a tick
    held: set[Key] = field(default_factory=set)  # slices that have been adopted at least once
    unshared: Unshared | None = None  # where this rank looks for tensors that train later

    @property
    def staging(self) -> DirectStaging:
        return self.owner.staging if self.owner is not None else DirectStaging()

    def apply_commands(self) -> BoundaryWork:
        """Never waits. Raises LearnerError (the job refuses it) and TransportLostError."""
        if self.alone_steps is not None:
            return BoundaryWork()
        work = self.state.apply(self._commands(), self)
        if self._closed and not self.state.finished:
            raise self._lost()
        return work

    def _commands(self) -> Iterable[messages.Message]:
        if self.ranks is not None:
            return self.ranks.commands()
        return self.owner.link.receive() if self.owner is not None else ()

    @property
    def _closed(self) -> bool:
        if self.ranks is not None:
            return self.ranks.closed
        return self.owner is not None and self.owner.link.closed

    def _lost(self) -> TransportLostError:
        if self.owner is not None:
            return self.owner.lost("transport process")
        return TransportLostError(
            "the transport process of rank 0 has ended; start all ranks again"
        )

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        if self.alone_steps is not None:
            self.state.tick = boundary.own_steps
            self.state.finished = self.state.tick >= self.alone_steps
        if self.owner is not None:
            self.owner.report(boundary, work, wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        if self.owner is not None:
            self.owner.settle(wait=wait)

    def wait(self, seconds_max: float) -> None:
        """Return when a command may have come; a rank waits for those in `apply_commands`."""
        if self.owner is not None:
            self.owner.link.wait(seconds_max)

    def send(self, message: messages.Message) -> None:
        """To the transport process; of ranks that have none nothing is sent."""
        if self.owner is not None:
            self.owner.send(message)

    def warn(self, reason: str) -> None:
        log.warning(reason)
        self.send(messages.Warned(reason=reason))

    def step_made(self) -> None:
        if self.unshared is not None and (reason := self.unshared.step_made()):
            self.warn(reason)

    def scalar(self, value: Tensor) -> Scalar:
        return self.staging.scalar(value)

    def leave(self, reason: str) -> None:
        if self.owner is not None:
            self.owner.leave(reason)

    def capture(self, key: Key) -> Ticket:
        """Give what this rank holds of a slice, and put the copy of what it owns in line."""
        owned = self.state.slices[key]
        beside: Callable[[Packed[Tensor]], Pairs] = partial(pairs, self.places, owned)
        if self.ranks is not None:
            values = self.ranks.gather(owned)
            if values is None:
                return Done()
            beside = partial(flat_pairs, values)
        return Done() if self.owner is None else self.owner.capture(key, beside)

    def capture_seed(self) -> None:
        """Capture the model as it is, which may become version 0, without a Boundary."""
        for key in self.state.slices:
            self.capture(key).wait()
            if self.owner is not None:
                self.owner.end_capture(key)

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Take what this rank holds of a slice, and give what it owns."""
        self.held.add(key)
        work.assigned[key] = None
        owned, values = self.state.slices[key], None
        if self.ranks is None:
            assert self.owner is not None, "nobody has its values"
            parts = pairs(self.places, owned, self.owner.arrived(key))
            work.tickets.append(self.staging.adopt(parts, blend))
            return
        if self.owner is None:
            work.tickets.append(Done())
        else:
            values, region = self.ranks.empty(owned), self.owner.arrived(key)
            work.tickets.append(self.staging.adopt(flat_pairs(values, region), 0.0))
        assign(self.ranks.deal(owned, values), blend)
        self.ranks.written()


def state_of(layout: Layout) -> JobState:
    slices = {(slice_.shard, slice_.fragment): slice_ for slice_ in layout.slices}
    return JobState(specs=layout.tensors, slices=slices)


def open_replica(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    layout: Layout,
    job: Job,
    *,
    ranks: Group | None = None,
    steps: Sequence[Optimizer] = (),
) -> Replica:
    """If it fails, nothing of it is left."""
    observer = not job.slot
    device = ranks.device if ranks is not None else device_of(places)
    unshared = None if observer else Unshared(models, places, steps)
    with opened_owner(job, layout, device) as owner:
        frozen = None
        if not observer:
            frozen = frozen_digest(models) if ranks is None else ranks.frozen(models, frozen_digest)
        if ranks is not None:
            ranks.control.link = owner.link
        replica = Replica(
            places=places,
            state=state_of(layout),
            owner=owner,
            ranks=ranks,
            unshared=unshared,
        )
        if not observer:
            replica.capture_seed()
        owner.send(configuration(job, layout, frozen.digest if frozen else ""))
        if frozen is not None and frozen.warning:
            replica.warn(frozen.warning)
    return replica


def open_follower(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    layout: Layout,
    *,
    ranks: Group,
    steps: Sequence[Optimizer] = (),
) -> Replica:
    """Open what a rank beside the head has; it owns no values."""
    # where all ranks have the same tensors, the head looks at them
    looks = not is_one(models, places, layout.tensors)
    follower = Replica(
        state=state_of(layout),
        ranks=ranks,
        places=places,
        unshared=Unshared(models, places, steps) if looks else None,
    )
    ranks.frozen(models, frozen_digest)
    follower.capture_seed()
    return follower


def agreed(
    models: Sequence[nn.Module],
    read: Callable[[], Job],
    ranks: Group | None,
    *,
    steps: Sequence[Optimizer],
    told: bool,
) -> Job:
    """Agree on all ranks, else SpecError. `told`: `on_adopt` was called. Collective."""

    def checked() -> Job:
        if len(models) > 1 and ranks is None:
            raise SpecError(
                "model", f"is a list of {len(models)} modules", "give one: nn.ModuleList(modules)"
            )
        job = read()
        say_alone(job)
        optimizers.check(steps, models, told=told)
        for model in models:
            refusals.check_model(model, may_be_cut=ranks is not None)
        return job

    if ranks is None:
        return checked()
    job = ranks.agree(checked)
    ranks.same("slot", job.slot)
    ranks.same("run file", job.run_file.to_json())
    return job


def open_for(
    models: Sequence[nn.Module],
    job: Job,
    ranks: Group | None,
    *,
    steps: Sequence[Optimizer],
) -> Replica:
    """Open; SpecError, on all ranks and with no process left, for an unfit model. Collective."""
    patterns = job.run_file.sync.mean_patterns
    if ranks is None:
        places = travelling(models[0], patterns)  # alone, too, so that mistakes are found
        specs = tuple(place.spec for place in places)
    else:
        places = ranks.agree(lambda: travelling_of(models, patterns))
        specs = ranks.open(models, places)
        optimizers.check_alike(ranks.told(optimizers.settings(steps, places)))
    if job.alone:
        start = Start(incarnation=1, cursor=0, tick=0)
        state = JobState(specs=specs, slices={}, start=start, proceed=True)
        return Replica(state=state, alone_steps=job.run_file.steps or 1)
    layout = job.run_file.layout(specs)
    if ranks is not None and not ranks.is_head:
        return open_follower(models, places, layout, ranks=ranks, steps=steps)
    return open_replica(models, places, layout, job, ranks=ranks, steps=steps)
