"""A model and what it shares with the transport process: commands are carried out here.

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

What is copied into the shared memory and out of it, and when the transport is told, is in owner.py.
`tick` never goes back, whatever order Tick and Start arrive in.

Who drives it: Learner and Observer. They call `apply_commands` and then `report` at every boundary
(with `wait=True` where the thread has nothing else to do), and `leave` exactly once.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import structlog
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.codecs import Packed
from atoll_protos.layout import AVERAGE, TensorSpec
from atoll_protos.parts import Share
from atoll_worker.link import messages
from atoll_worker.link import socket as links
from atoll_worker.ranks.group import Group
from atoll_worker.ranks.reading import Reader
from atoll_worker.settings import Job
from atoll_worker.training import process
from atoll_worker.training.checksums import PLAIN_READER
from atoll_worker.training.companion import Companion, companion_of
from atoll_worker.training.meeting import configure_head
from atoll_worker.training.naming import cleaner
from atoll_worker.training.obeying import BoundaryWork, Key, Obeying
from atoll_worker.training.owner import Owner, configuration, owner_of
from atoll_worker.training.parameters import Place, device_of, pairs, travelling
from atoll_worker.training.staging import Pairs, Scalar, Ticket, assign
from atoll_worker.training.undone import Watch
from atoll_worker.training.unshared import Unshared, unshared_of

POLL_SECONDS = 0.2  # a waiting thread looks for SIGTERM this often

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Replica(Obeying):
    """See the module's theory of operation. `places` are in the order of the layout's tensors."""

    places: Sequence[Place]
    owner: Owner
    ranks: Group | None = None  # of this learner, if it has several; this is the head
    companion: Companion | None = None
    unshared: Unshared | None = None
    watch: Watch | None = None  # whether the optimizer's steps undo what is adopted

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
        link = self.owner.link
        work = self.obey(self.ranks.commands() if self.ranks else link.receive())
        closed = self.ranks.closed if self.ranks else link.closed
        if closed and not self.finished:
            raise self.owner.lost("transport process")
        return work

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        """See Owner."""
        self.owner.report(boundary, work, wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        """See Owner."""
        self.owner.settle(wait=wait)

    def capture(self, key: Key) -> Ticket:
        """Put the copy of a slice into its capture region in line."""
        return self.owner.capture(key, self._beside(key))

    def capture_seed(self) -> None:
        """Fill every capture region with the model as it is, which may become version 0."""
        for key in self.slices:
            self.owner.capture_now(key, self._beside(key))

    def _beside(self, key: Key) -> Callable[[Packed[Tensor]], Pairs]:
        """The values of a slice, in pairs with those of its capture region."""
        owned = self.slices[key]
        if self.ranks is None:
            return partial(pairs, self.places, owned)
        values = self.ranks.gather(owned)
        assert values is not None, "this rank is not the head"
        return partial(self.ranks.flat, values)

    def wait(self, seconds_max: float) -> None:
        """Return when a command has come, after `seconds_max` at the latest."""
        self.owner.link.wait(seconds_max)

    def scalar(self, value: Tensor) -> Scalar:
        """Read a one-element tensor, behind the step; see Staging."""
        return self.owner.staging.scalar(value)

    def leave(self, reason: str) -> None:
        """Settle, send Leaving, and wait for the transport process to end."""
        self.trust()
        self.owner.leave(reason)

    def send(self, message: messages.Message) -> None:
        """See Owner."""
        self.owner.send(message)

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Put the values of a slice into the model, in line."""
        self.held.add(key)
        work.assigned[key] = None
        owned = self.slices[key]
        region, staging = self.owner.arrived(key), self.owner.staging
        if self.ranks is None:
            parts: Pairs = pairs(self.places, owned, region)
            averaged = [self.specs[each.tensor].merge == AVERAGE for each in owned.pieces]
        else:
            values = self.ranks.empty(owned)
            work.tickets.append(staging.adopt(self.ranks.flat(values, region), 0.0))
            parts, averaged = self.ranks.deal(owned, values)
        watch = None if self.finished else self.watch
        sample = watch.before(parts, averaged) if watch else None
        if self.ranks is None:
            work.tickets.append(staging.adopt(parts, blend))
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
        file, offset = self.owner.companion_file(changed=changed)
        try:
            with self._reading(self.companion) as reader:
                count = self.companion.write(file, offset, changed=changed, reader=reader)
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
    """As `open_replica`, on the head of several ranks, whose tensors together are `specs`.

    What is wrong with the files that the head alone reads is refused on every rank.
    """

    def read() -> Companion:
        with ranks.reading(models, cleaner) as reader:
            return companion_of(models, places, export_files, reader)

    return _opened(
        job,
        instance,
        places,
        specs,
        companion=partial(ranks.agree, read),
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
    layout = job.run_file.layout(specs)
    device = ranks.device if ranks is not None else device_of(places)
    share = (ranks and ranks.share) or Share(0, job.lanes, job.lanes)
    child = process.take()  # it gets ready while the model is copied
    with ExitStack() as undo:
        undo.callback(child.abandon)
        made = companion() if companion else None
        plan = links.memory_plan(layout, job.run_file.sync, observer=observer, share=share)
        owner = owner_of(child, plan, device)
        undo.callback(owner.staging.close)
        if ranks is not None:
            ranks.follow(child.link)
        replica = Replica(
            places=places,
            specs=specs,
            slices={(each.shard, each.fragment): each for each in layout.slices},
            owner=owner,
            ranks=ranks,
            companion=made,
        )
        if not observer:
            replica.capture_seed()
        if unshared is not None:
            replica.unshared = unshared
            if ranks is None or ranks.is_first_that_trains:
                replica.watch = Watch(staging=owner.staging)
                replica.watch.begin()
                undo.callback(replica.watch.end)
        told = replace(
            configuration(job, instance, layout, share),
            frozen_digest=made.frozen_digest if made else "",
            has_companion=made is not None,
        )
        configure_head(owner, ranks, told)
        if made is not None and made.warning:
            replica.warn(made.warning)
        undo.pop_all()
    return replica
