"""What every side of a learner does at its boundaries, with a model, its owner and its ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from atoll_protos.job.layout import AVERAGE
from atoll_protos.transfer.codecs import Packed
from atoll_worker.link import messages
from atoll_worker.model.parameters import pairs
from atoll_worker.model.staging import DirectStaging, Pairs, Scalar, assign
from atoll_worker.model.tickets import Done, Ticket
from atoll_worker.ranks.boxes import TravellingTensor
from atoll_worker.ranks.group import Group
from atoll_worker.ranks.redistribution import flat_pairs
from atoll_worker.training.boundary import BoundaryWork, Key, Obeying
from atoll_worker.training.owner import TrainingOwner


@dataclass(slots=True, kw_only=True)
class Side(Obeying):
    """Learner and Observer call `apply_commands` and then `report` at every boundary.

    `report` has `wait=True` where the thread has nothing else to do. `leave` comes exactly once.
    """

    places: Sequence[TravellingTensor] = ()  # in the order of the layout's tensors
    owner: TrainingOwner | None = None  # of what lies in a shared memory; None: nothing does
    ranks: Group | None = None  # of this learner, if it has several

    @property
    def staging(self) -> DirectStaging:
        return self.owner.staging if self.owner is not None else DirectStaging()

    def apply_commands(self) -> BoundaryWork:
        """Never waits. Raises LearnerError (the job refuses it) and TransportLostError."""
        return self.obey(())

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        if self.owner is not None:
            self.owner.report(boundary, work, wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        if self.owner is not None:
            self.owner.settle(wait=wait)

    def wait(self, seconds_max: float) -> None:
        """Return when a command may have come: at once where `apply_commands` waits for it."""

    def scalar(self, value: Tensor) -> Scalar:
        return self.staging.scalar(value)

    def leave(self, reason: str) -> None:
        self.trust()
        if self.owner is not None:
            self.owner.leave(reason, finished=self.finished)

    def capture(self, key: Key) -> Ticket:
        """Give what this rank holds of a slice, and put the copy of what it owns in line."""
        owned = self.slices[key]
        beside: Callable[[Packed[Tensor]], Pairs] = partial(pairs, self.places, owned)
        if self.ranks is not None:
            values = self.ranks.gather(owned)
            if values is None:
                return Done()
            beside = partial(flat_pairs, values)
        return Done() if self.owner is None else self.owner.capture(key, beside)

    def capture_seed(self) -> None:
        """The model as it is, which may become version 0; no Boundary tells of that."""
        for key in self.slices:
            self.capture(key).wait()
            if self.owner is not None:
                self.owner.end_capture(key)

    def adopt(self, work: BoundaryWork, key: Key, blend: float) -> None:
        """Take what this rank holds of a slice, and give what it owns."""
        self.held.add(key)
        work.assigned[key] = None
        owned, values = self.slices[key], None
        if self.ranks is None:
            assert self.owner is not None, "nobody has its values"
            parts: Pairs = pairs(self.places, owned, self.owner.arrived(key))
            averaged = [self.specs[each.tensor].merge == AVERAGE for each in owned.pieces]
            with self.watched(parts, averaged):
                work.tickets.append(self.staging.adopt(parts, blend))
            return
        if self.owner is None:
            work.tickets.append(Done())
        else:
            values, region = self.ranks.empty(owned), self.owner.arrived(key)
            work.tickets.append(self.staging.adopt(flat_pairs(values, region), 0.0))
        parts, averaged = self.ranks.deal(owned, values)
        with self.watched(parts, averaged):
            assign(parts, blend)
            self.ranks.written()

    def give(self, *, changed: bool) -> None:
        """Put the companion where the transport reads it."""


@dataclass(slots=True, kw_only=True)
class Alone(Side):
    """A learner without a job: every step is a tick, and nothing ever changes the model."""

    steps: int
    proceed: bool = True

    def report(
        self, boundary: messages.Boundary, work: BoundaryWork, *, wait: bool = False
    ) -> None:
        self.tick = boundary.own_steps
        self.finished = self.tick >= self.steps
