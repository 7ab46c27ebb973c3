"""A rank of a learner that is not its head: the same side of a Learner as a Replica.

It carries out the commands that the head has drawn, in the head's order: of a capture it gives what
it holds, of an adoption it takes it. What it counts goes nowhere, since tokens, cursor and loss are
the head's (docs/protocol.md, rule 35).

The first rank of each further host is an owner as well: it has that host's share of every slice in
a shared memory, and a lane process beside it that sends and receives it. From this rank the lane
process hears what is in the memory, and from the head's transport what to do with it; the lane
process itself says nothing here but that it has ended.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import structlog
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.layout import Layout
from atoll_worker.errors import TransportLostError
from atoll_worker.link import messages
from atoll_worker.link import socket as links
from atoll_worker.ranks.group import Group
from atoll_worker.settings import Job
from atoll_worker.training import process
from atoll_worker.training.companion import lend
from atoll_worker.training.meeting import configure_hand
from atoll_worker.training.naming import cleaner
from atoll_worker.training.obeying import BoundaryWork, Key, Obeying
from atoll_worker.training.owner import Owner, configuration, owner_of
from atoll_worker.training.parameters import Place, is_one
from atoll_worker.training.staging import DirectStaging, Done, Scalar, Staging, Ticket, assign
from atoll_worker.training.undone import Watch
from atoll_worker.training.unshared import Unshared, unshared_of

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Follower(Obeying):
    """See the module; for the names see Replica."""

    ranks: Group
    staging: Staging
    models: Sequence[nn.Module]
    places: Sequence[Place]
    owner: Owner | None = None  # of its host's share; None: another rank has that
    unshared: Unshared | None = None  # where the head does not have the same modules
    watch: Watch | None = None  # where this is the first rank that trains something

    def step_made(self) -> None:
        """As on the head, which warns of what it has as well. Raises SpecError; see `watch`."""
        if self.watch is not None and (reason := self.watch.judge()):
            log.warning(reason)
        if self.unshared is not None and (reason := self.unshared.step_made()):
            log.warning(reason)

    def apply_commands(self) -> BoundaryWork:
        """Carry out the head's commands.

        Raises LearnerError when the job refuses this learner, and TransportLostError when the
        head's transport process or the lane process beside this one is gone.
        """
        work = self.obey(self.ranks.commands())
        if self.ranks.closed and not self.finished:
            raise TransportLostError(
                "the transport process of rank 0 has ended; start all ranks again"
            )
        if self.owner is not None and not self.finished:
            self.owner.link.fill()
            if self.owner.link.closed:
                raise self.owner.lost("lane process")
        return work

    def capture(self, key: Key) -> Ticket:
        """Give what this rank holds of a slice, and put the copy of what it owns in line."""
        values = self.ranks.gather(self.slices[key])
        if self.owner is None or values is None:
            return Done()
        return self.owner.capture(key, partial(self.ranks.flat, values))

    def capture_seed(self) -> None:
        """The model as it is, which may become version 0."""
        for key in self.slices:
            values = self.ranks.gather(self.slices[key])
            if self.owner is not None and values is not None:
                self.owner.capture_now(key, partial(self.ranks.flat, values))

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Take what this rank holds of a slice, and give what it owns."""
        self.held.add(key)
        work.assigned[key] = None
        owned, values = self.slices[key], None
        if self.owner is None:
            work.tickets.append(Done())
        else:
            values, region = self.ranks.empty(owned), self.owner.arrived(key)
            work.tickets.append(self.staging.adopt(self.ranks.flat(values, region), 0.0))
        pairs, averaged = self.ranks.deal(owned, values)
        watch = None if self.finished else self.watch
        sample = watch.before(pairs, averaged) if watch else None
        assign(pairs, blend)
        self.ranks.written()
        if watch and sample:
            watch.after(sample)

    def give(self, *, changed: bool) -> None:
        """The head gives the companion."""
        with self.ranks.reading(self.models, cleaner) as reader:
            lend(self.models, self.places, reader)

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        """The head reports; a lane process hears what is in its memory and what has been taken."""
        if self.owner is not None and (boundary.captured or boundary.adopted):
            self.owner.report(boundary, work, wait=wait)
        else:
            self.settle(wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        """See Owner."""
        if self.owner is not None:
            self.owner.settle(wait=wait)

    def wait(self, seconds_max: float) -> None:
        """The head waits, and this rank for its word."""

    def scalar(self, value: Tensor) -> Scalar:
        """Read a one-element tensor."""
        return self.staging.scalar(value)

    def trust(self) -> None:
        """The optimizer is told of adoptions: what its steps do is not looked at any more."""
        if self.watch is not None:
            self.watch.end()
            self.watch = None

    def leave(self, reason: str) -> None:
        """The head tells the job; a lane process leaves with this rank."""
        self.trust()
        if self.owner is not None:
            self.owner.leave(reason)


def open_follower(
    models: Sequence[nn.Module],
    places: Sequence[Place],
    layout: Layout,
    ranks: Group,
    job: Job,
    instance: str,
    optimizers: Sequence[Optimizer] = (),
) -> Follower:
    """Give what this rank holds of the model's first values, as the head asks for it.

    Raises SpecError, on all ranks, for what the head cannot give to the export. If anything fails,
    no process and no memory is left behind.
    """
    stages, share = not is_one(models, places, layout.tensors), ranks.share
    with ExitStack() as undo:
        owner, told = None, None
        if share is not None:
            child = process.take()  # it gets ready meanwhile
            undo.callback(child.abandon)
            plan = links.memory_plan(layout, job.run_file.sync, observer=False, share=share)
            owner = owner_of(child, plan, ranks.device)
            undo.callback(owner.staging.close)
            told = configuration(job, instance, layout, share)
        else:
            process.discard()  # what was started early has nothing to do beside this rank
        follower = Follower(
            specs=layout.tensors,
            slices={(each.shard, each.fragment): each for each in layout.slices},
            ranks=ranks,
            staging=owner.staging if owner else DirectStaging(),
            models=models,
            places=places,
            owner=owner,
            unshared=unshared_of(models, places, optimizers) if stages else None,
        )
        if ranks.is_first_that_trains:
            follower.watch = Watch(staging=follower.staging)
            follower.watch.begin()
            undo.callback(follower.watch.end)
        ranks.agree(partial(follower.give, changed=False))  # or the head refuses its companion
        follower.capture_seed()
        configure_hand(owner, ranks, told)
        undo.pop_all()
    return follower
