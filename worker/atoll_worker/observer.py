"""The public Observer: receives the shared parameters of a job while it trains."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import structlog
from torch import nn

from atoll_protos.errors import SpecError
from atoll_worker.errors import install_excepthook, reason_of
from atoll_worker.job import Job, read_job
from atoll_worker.link.messages import Evaluated
from atoll_worker.model.parameters import travelling
from atoll_worker.script import refusals
from atoll_worker.script.termination import Termination
from atoll_worker.training.boundary import Counts
from atoll_worker.training.replica import POLL_SECONDS, Replica, open_replica

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The shared parameters of a job at a tick; `model` keeps them until the next is asked for."""

    tick: int
    final: bool  # the job's last values
    model: nn.Module


class Observer:
    """Receives the shared parameters of a job in a process of its own.

        with Observer(model) as observer:
            for snapshot in observer.snapshots(every=100):
                observer.report(loss=evaluate(snapshot.model), tokens=count)

    `model` is built like the learners' and takes the job's values; in a snapshot each slice is the
    newest that has arrived. An observer offers nothing, so it cannot disturb the training. The
    environment, LearnerError, SpecError and SIGTERM are as for a Learner, without a slot.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._replica: Replica | None = None
        self._termination = Termination()
        self._snapshot: Snapshot | None = None
        self._snapshot_at = 0.0

    @property
    def every(self) -> int | None:
        """The ticks between two snapshots that the job asks for (`spec.evaluator.everySteps`)."""
        return self._job.run_file.evaluator_every

    @property
    def tick(self) -> int:
        """The job's clock: the lowest tick over the shards, as last received."""
        return self._replica.state.tick if self._replica else 0

    def snapshots(self, *, every: int | None = None) -> Iterator[Snapshot]:
        """Yield a snapshot of the first values, then when the tick passes a multiple of `every`.

        `every` is in ticks, by default `spec.evaluator.everySteps`. The last one has the final
        values and always comes. Multiples that pass while the caller works are skipped. Raises
        SpecError if `every` is below 1.
        """
        every = self.every or 1 if every is None else every
        if every < 1:
            raise SpecError("every", f"is {every}", "give a number of ticks, 1 or more")
        replica = self._inside
        due = 0
        while not replica.state.finished:
            whole = len(replica.held) == len(replica.state.slices)
            if whole and replica.state.tick >= due:
                due = (replica.state.tick // every + 1) * every
                yield self._taken(replica, final=False)
            with self._termination.deferred():
                self._absorb(replica)
        yield self._taken(replica, final=True)

    def report(self, *, loss: float, tokens: int) -> None:
        """Report the mean loss in nats per token over `tokens`, measured on the newest snapshot."""
        if self._snapshot is None:
            raise RuntimeError("report() belongs inside the loop over snapshots()")
        measured = Evaluated(
            tick=self._snapshot.tick,
            final=self._snapshot.final,
            loss=float(loss),
            tokens=tokens,
            seconds=time.monotonic() - self._snapshot_at,
        )
        with self._termination.deferred():
            self._inside.send(measured)

    def __enter__(self) -> Self:
        install_excepthook()
        refusals.check_module(self.model)
        refusals.check_model(self.model)
        job = self._job
        self._termination.install()
        try:
            with self._termination.deferred():
                places = travelling(self.model, job.run_file.sync.mean_patterns)
                layout = job.run_file.layout(tuple(place.spec for place in places))
                self._replica = open_replica([self.model], places, layout, job)
                log.info("observing", job=job.run_file.job)
        except BaseException as error:
            self._leave(reason_of(error))
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(reason_of(error) if error else "done")

    @cached_property
    def _job(self) -> Job:
        return read_job(observer=True)

    @property
    def _inside(self) -> Replica:
        if self._replica is None:
            raise RuntimeError("use an Observer as `with Observer(model) as observer:`")
        return self._replica

    def _taken(self, replica: Replica, *, final: bool) -> Snapshot:
        self._snapshot = Snapshot(tick=replica.state.tick, final=final, model=self.model)
        self._snapshot_at = time.monotonic()
        return self._snapshot

    def _absorb(self, replica: Replica) -> None:
        replica.wait(POLL_SECONDS)
        if work := replica.apply_commands():
            replica.report(Counts().boundary(work, None), work, wait=True)

    def _leave(self, reason: str) -> None:
        with self._termination.leaving():
            replica, self._replica = self._replica, None
            if replica is not None:
                try:
                    log.info("leaving", job=self._job.run_file.job, reason=reason)
                finally:  # nobody may read the output any more
                    replica.leave(reason)
