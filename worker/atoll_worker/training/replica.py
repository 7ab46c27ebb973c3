"""A model and what it shares with the transport process: commands are carried out here.

A replica changes the model at *step boundaries* only: in the calls that Learner makes after an
optimizer step, before the first one, and while it waits in lock-step modes. Of a learner of several
processes this is the *head*: values of all ranks are gathered before a capture and dealt out at an
adoption. The other ranks are *followers*: what they hold they give to the head, and take from it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.codecs import Packed
from atoll_worker.errors import TransportLostError
from atoll_worker.job import Job, say_alone
from atoll_worker.link import messages
from atoll_worker.link.messages import Start
from atoll_worker.model.parameters import (
    Unshared,
    device_of,
    frozen_digest,
    is_one,
    pairs,
    travelling,
    travelling_of,
)
from atoll_worker.model.staging import DirectStaging, Pairs, Scalar, assign
from atoll_worker.model.tickets import Done, Ticket
from atoll_worker.ranks.group import Group
from atoll_worker.ranks.redistribution import TravellingTensor, flat_pairs
from atoll_worker.script import optimizers, refusals
from atoll_worker.training.boundary import BoundaryWork, JobState, Key
from atoll_worker.training.owner import TrainingOwner, configuration, opened_owner

log = structlog.get_logger()

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
        """The model as it is, which may become version 0; no Boundary tells of that."""
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
    slices = {(each.shard, each.fragment): each for each in layout.slices}
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
        told = replace(
            configuration(job, layout),
            frozen_digest=frozen.digest if frozen else "",
        )
        owner.send(told)
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
    """Collective. `told`: `on_adopt` was called. SpecError, on all ranks, for what does not fit."""

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
    """Collective. SpecError, on all ranks, if the model cannot travel; no process is left then."""
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
