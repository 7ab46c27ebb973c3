"""A rank of a learner that is not its head: the same side of a Learner as a Replica.

The first rank of each further host is an owner as well: a lane process beside it hears from this
rank what is in its memory, and from the head's transport what to do with it (rules 31 and 35).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from torch import nn
from torch.optim import Optimizer

from atoll_protos.job.layout import Layout
from atoll_worker.errors import TransportLostError
from atoll_worker.job import Job
from atoll_worker.link import messages
from atoll_worker.model.companion import lend
from atoll_worker.model.naming import cleaner
from atoll_worker.model.parameters import is_one
from atoll_worker.model.undone import Watch
from atoll_worker.model.unshared import Unshared
from atoll_worker.ranks.boxes import TravellingTensor
from atoll_worker.ranks.control import HEAD
from atoll_worker.ranks.group import Group
from atoll_worker.training.boundary import BoundaryWork
from atoll_worker.training.owner import TrainingOwner, configuration, opened_owner
from atoll_worker.training.side import Side


@dataclass(slots=True, kw_only=True)
class Follower(Side):
    """See the module. `owner` is that of its host's share; None: another rank has that."""

    ranks: Group
    models: Sequence[nn.Module]

    def apply_commands(self) -> BoundaryWork:
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

    def give(self, *, changed: bool) -> None:
        """The head gives the companion."""
        with self.ranks.reading(self.models, cleaner) as reader:
            lend(self.models, self.places, reader)

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        """The head reports; a lane process hears what is in its memory and what has been taken."""
        if boundary.captured or boundary.adopted:
            Side.report(self, boundary, work, wait=wait)
        else:
            self.settle(wait=wait)


def open_follower(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    layout: Layout,
    job: Job,
    *,
    ranks: Group,
    steps: Sequence[Optimizer] = (),
) -> Follower:
    """Raises SpecError, on all ranks, for what cannot be exported; if it fails, nothing is left."""
    share = ranks.share
    opened: AbstractContextManager[TrainingOwner | None]
    opened = nullcontext() if share is None else opened_owner(job, layout, share, ranks.device)
    with opened as owner:
        # where all ranks have the same tensors, the head looks at them
        looks = not is_one(models, places, layout.tensors)
        follower = Follower(
            specs=layout.tensors,
            slices={(each.shard, each.fragment): each for each in layout.slices},
            ranks=ranks,
            models=models,
            places=places,
            owner=owner,
            unshared=Unshared(models, places, steps) if looks else None,
        )
        if ranks.is_first_that_trains:
            follower.watch = Watch(staging=follower.staging)
        ranks.agree(partial(follower.give, changed=False))  # or the head refuses its companion
        follower.capture_seed()
        if len(ranks.owners) > 1:
            head, secret = ranks.told(("", ""))[HEAD]
            if owner is not None and share is not None:
                silence = ranks.lifeline.peers.silence_seconds_max
                told = configuration(job, layout, share)
                owner.send(replace(told, head=head, secret=secret, silence_seconds=silence))
    return follower
