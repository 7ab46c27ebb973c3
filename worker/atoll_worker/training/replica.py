"""A model and what it shares with the transport process: commands are carried out here.

A replica changes the model at *step boundaries* only: in the calls that Learner makes after an
optimizer step, before the first one, and while it waits in lock-step modes. Of a learner of several
processes this is the *head*: values of all ranks are gathered before a capture and dealt out at an
adoption. The other ranks are followers (follower.py).
"""

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.optim import Optimizer

from atoll_protos.job.layout import Layout
from atoll_protos.network.addresses import joined
from atoll_protos.transfer.division import Share
from atoll_worker.job import Job
from atoll_worker.link import messages
from atoll_worker.model.companion import Companion, companion_of
from atoll_worker.model.naming import cleaner
from atoll_worker.model.parameters import device_of
from atoll_worker.model.tensor_sums import PLAIN_READER
from atoll_worker.model.undone import Watch
from atoll_worker.model.unshared import Unshared
from atoll_worker.ranks.boxes import TravellingTensor
from atoll_worker.ranks.group import Group
from atoll_worker.ranks.whole_tensors import Reader
from atoll_worker.training.boundary import BoundaryWork
from atoll_worker.training.owner import TrainingOwner, configuration, opened_owner
from atoll_worker.training.side import Side

POLL_SECONDS = 0.2  # a waiting thread looks for SIGTERM this often
SECRET_BYTES = 16


@dataclass(slots=True, kw_only=True)
class Replica(Side):
    """The side that speaks with the job."""

    owner: TrainingOwner
    companion: Companion | None = None

    def apply_commands(self) -> BoundaryWork:
        link = self.owner.link
        work = self.obey(self.ranks.commands() if self.ranks else link.receive())
        closed = self.ranks.closed if self.ranks else link.closed
        if closed and not self.finished:
            raise self.owner.lost("transport process")
        return work

    def wait(self, seconds_max: float) -> None:
        self.owner.link.wait(seconds_max)

    def send(self, message: messages.Message) -> None:
        self.owner.send(message)

    def warn(self, reason: str) -> None:
        Side.warn(self, reason)
        self.send(messages.Warned(reason=reason))

    def give(self, *, changed: bool) -> None:
        """The device is read at once. Training never ends for want of memory for it."""
        if self.companion is None:
            return
        file, offset = self.owner.companion_file(changed=changed)
        try:
            with reading(self.companion.models, self.ranks) as reader:
                count = self.companion.write(file, offset, changed=changed, reader=reader)
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            self.warn(f"the export will lack what does not travel: {error!r}")
            return
        self.send(messages.CompanionReady(changed=changed, byte_count=count))
        if self.companion.stale:
            self.warn(self.companion.warning)


def reading(models: Sequence[nn.Module], ranks: Group | None) -> AbstractContextManager[Reader]:
    return nullcontext(PLAIN_READER) if ranks is None else ranks.reading(models, cleaner)


def open_replica(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    layout: Layout,
    job: Job,
    *,
    ranks: Group | None = None,
    files: Sequence[object] = (),
    steps: Sequence[Optimizer] = (),
) -> Replica:
    """Raises SpecError, on every rank, for wrong `files`; if it fails, nothing of it is left."""

    def read() -> Companion:
        with reading(models, ranks) as reader:
            return companion_of(models, places, files, reader)

    observer = not job.slot
    device = ranks.device if ranks is not None else device_of(places)
    share = (ranks and ranks.share) or Share(0, job.lanes, job.lanes)
    unshared = None if observer else Unshared(models, places, steps)
    with opened_owner(job, layout, share, device) as owner:
        made = None if observer else ranks.agree(read) if ranks is not None else read()
        if ranks is not None:
            ranks.control.link = owner.link
        replica = Replica(
            places=places,
            specs=layout.tensors,
            slices={(each.shard, each.fragment): each for each in layout.slices},
            owner=owner,
            ranks=ranks,
            companion=made,
            unshared=unshared,
        )
        if not observer:
            replica.capture_seed()
        if unshared is not None and (ranks is None or ranks.is_first_that_trains):
            replica.watch = Watch(staging=owner.staging)
        told = replace(
            configuration(job, layout, share),
            frozen_digest=made.frozen_digest if made else "",
            has_companion=made is not None,
        )
        _configure(owner, ranks, told)
        if made is not None and made.warning:
            replica.warn(made.warning)
    return replica


def _configure(owner: TrainingOwner, ranks: Group | None, told: messages.Configure) -> None:
    """Collective: ranks hear its address and secret over gloo; owners tell the lane processes."""
    others = len(ranks.owners) - 1 if ranks is not None else 0
    if ranks is None or not others:
        owner.send(told)
        return
    line, secret = ranks.lifeline, secrets.token_hex(SECRET_BYTES)
    silence = line.peers.silence_seconds_max
    told = replace(told, lane_processes=others, secret=secret, silence_seconds=silence)
    owner.send(replace(told, head=joined(line.listens, 0)))
    ranks.told((joined(line.head, owner.listening()), secret))
