"""A rank of a learner that is not its head: the same side of a Learner as a Replica.

It has no transport process and no shared memory. It carries out the commands that the head has
drawn, in the head's order: of a capture it gives what it holds, of an adoption it takes it. What it
counts goes nowhere, since tokens, cursor and loss are the head's (docs/protocol.md, rule 35).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.layout import Layout
from atoll_worker.errors import TransportLostError
from atoll_worker.link import messages
from atoll_worker.ranks.group import Group
from atoll_worker.training.companion import lend
from atoll_worker.training.naming import cleaner
from atoll_worker.training.obeying import BoundaryWork, Key, Obeying
from atoll_worker.training.parameters import Place, is_one
from atoll_worker.training.staging import DirectStaging, Done, Scalar, Staging, Ticket, assign
from atoll_worker.training.unshared import Unshared, unshared_of

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Follower(Obeying):
    """See the module; for the names see Replica."""

    ranks: Group
    staging: Staging
    models: Sequence[nn.Module]
    places: Sequence[Place]
    unshared: Unshared | None = None  # where the head does not have the same modules

    def step_made(self) -> None:
        """The head looks at what steps do, and warns of what it has as well."""
        if self.unshared is not None and (reason := self.unshared.step_made()):
            log.warning(reason)

    def apply_commands(self) -> BoundaryWork:
        """Carry out the head's commands.

        Raises LearnerError when the job refuses this learner, and TransportLostError when the
        head's transport process is gone.
        """
        work = self.obey(self.ranks.commands())
        if self.ranks.closed and not self.finished:
            raise TransportLostError(
                "the transport process of rank 0 has ended; start all ranks again"
            )
        return work

    def capture(self, key: Key) -> Ticket:
        """Give what this rank holds of a slice."""
        self.ranks.gather(self.slices[key])
        return Done()

    def capture_seed(self) -> None:
        """The model as it is, which may become version 0."""
        for key in self.slices:
            self.capture(key)

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Take what this rank holds of a slice."""
        self.held.add(key)
        work.assigned[key] = None
        pairs, _ = self.ranks.deal(self.slices[key], None)
        work.tickets.append(Done())
        assign(pairs, blend)
        self.ranks.written()

    def give(self, *, changed: bool) -> None:
        """The head gives the companion."""
        with self.ranks.reading(self.models, cleaner) as reader:
            lend(self.models, self.places, reader)

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        """The head reports."""

    def settle(self, *, wait: bool = False) -> None:
        """Nothing is under way."""

    def wait(self, seconds_max: float) -> None:
        """The head waits, and this rank for its word."""

    def scalar(self, value: Tensor) -> Scalar:
        """Read a one-element tensor."""
        return self.staging.scalar(value)

    def trust(self) -> None:
        """The head looks at what steps do."""

    def leave(self, reason: str) -> None:
        """The head tells the job."""


def open_follower(
    models: Sequence[nn.Module],
    places: Sequence[Place],
    layout: Layout,
    ranks: Group,
    optimizers: Sequence[Optimizer] = (),
) -> Follower:
    """Give what this rank holds of the model's first values, as the head asks for it."""
    stages = not is_one(models, places, layout.tensors)
    follower = Follower(
        specs=layout.tensors,
        slices={(each.shard, each.fragment): each for each in layout.slices},
        ranks=ranks,
        staging=DirectStaging(),
        models=models,
        places=places,
        unshared=unshared_of(models, places, optimizers) if stages else None,
    )
    follower.give(changed=False)
    follower.capture_seed()
    return follower
