"""The public Observer: receives the shared parameters of a job while it trains."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from torch import nn

from atoll_protos.errors import SpecError
from atoll_protos.run import RunFile
from atoll_worker.errors import install_excepthook, reason_of
from atoll_worker.link.messages import Boundary, Evaluated
from atoll_worker.settings import Job, read_job
from atoll_worker.training import refusals
from atoll_worker.training.replica import POLL_SECONDS, Replica, open_replica
from atoll_worker.training.termination import Termination

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The shared parameters of a job at a tick.

    `model` is the one that was given to Observer. It keeps these values until the next snapshot is
    asked for, so copy what must be kept longer.
    """

    tick: int
    final: bool  # the job's last values
    model: nn.Module


class Observer:
    """Receives the shared parameters of a job in a process of its own:

        with Observer(model) as observer:
            for snapshot in observer.snapshots(every=100):
                observer.report(loss=evaluate(snapshot.model), tokens=count)

    `model` is built like the learners' (the syncer compares the layouts) and takes the job's
    values. Slices are published at different times; in a snapshot each is the newest that has
    arrived. An observer offers nothing and counts for nothing, so it cannot disturb the training.

    Job and syncer come from the arguments or the environment as for a Learner; no slot is needed.
    LearnerError, SpecError and SIGTERM are as for a Learner, too.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        run_file: str | Path | RunFile | None = None,
        endpoints: Sequence[str] = (),
    ) -> None:
        self.model = model
        self._arguments = (run_file, tuple(endpoints))
        self._job: Job | None = None
        self._replica: Replica | None = None
        self._termination = Termination()
        self._snapshot: Snapshot | None = None
        self._snapshot_at = 0.0

    @property
    def run_file(self) -> RunFile:
        """The job as its processes know it; known once entered."""
        if self._job is None:
            raise RuntimeError("use an Observer as `with Observer(model) as observer:`")
        return self._job.run_file

    @property
    def tick(self) -> int:
        """The job's clock: the lowest tick over the shards, as last received."""
        return self._replica.tick if self._replica else 0

    def snapshots(self, *, every: int | None = None) -> Iterator[Snapshot]:
        """Yield a snapshot of the first values, and then whenever the tick passes a multiple.

        `every` is the distance in ticks, by default that of the job (`spec.evaluator.everySteps`).
        The last snapshot has the final values and always comes. Multiples that pass while the
        caller works are skipped, not queued. Raises SpecError if `every` is below 1.
        """
        every = self.run_file.evaluator_every or 1 if every is None else every
        if every < 1:
            raise SpecError("every", f"is {every}", "give a number of ticks, 1 or more")
        replica = self._inside
        due = 0
        while not replica.finished:
            whole = len(replica.held) == len(replica.slices)
            if whole and replica.tick >= due:
                due = (replica.tick // every + 1) * every
                yield self._taken(replica, final=False)
            with self._termination.deferred():
                self._absorb(replica)
        yield self._taken(replica, final=True)

    def report(self, *, loss: float, tokens: int) -> None:
        """Report what was measured on the newest snapshot.

        `loss` is a mean in nats per token over `tokens` tokens. It appears in
        `status.progress.metrics` of the job and in `evaluations.jsonl` of the run folder.
        """
        if self._snapshot is None:
            raise RuntimeError("report() belongs inside the loop over snapshots()")
        with self._termination.deferred():
            self._inside.send(
                Evaluated(
                    tick=self._snapshot.tick,
                    loss=float(loss),
                    tokens=tokens,
                    seconds=time.monotonic() - self._snapshot_at,
                )
            )

    def __enter__(self) -> Self:
        """Join the job; the first snapshot waits for its values."""
        install_excepthook()
        refusals.check_module(self.model)
        refusals.check_model(self.model)
        run_file, endpoints = self._arguments
        self._job = read_job(observer=True, run_file=run_file, endpoints=endpoints)
        self._termination.install()
        try:
            with self._termination.deferred():
                self._replica = open_replica(
                    self.model, self._job, self._job.instance, observer=True
                )
                log.info("observing", job=self.run_file.job)
        except BaseException as error:
            self._leave(reason_of(error))
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the job."""
        self._leave(reason_of(error) if error else "done")

    @property
    def _inside(self) -> Replica:
        if self._replica is None:
            raise RuntimeError("use an Observer as `with Observer(model) as observer:`")
        return self._replica

    def _taken(self, replica: Replica, *, final: bool) -> Snapshot:
        """The model as it is now; nothing changes it before the caller asks for the next one."""
        self._snapshot = Snapshot(tick=replica.tick, final=final, model=self.model)
        self._snapshot_at = time.monotonic()
        return self._snapshot

    def _absorb(self, replica: Replica) -> None:
        """Wait for the next values, at most a moment, and adopt them."""
        replica.wait(POLL_SECONDS)
        if work := replica.apply_commands():
            boundary = Boundary(
                own_steps=0,
                tokens=0,
                loss=0.0,
                step_seconds=0.0,
                blocked_seconds=0.0,
                cursor=0,
                adopted=tuple(work.adopted),
                captured=(),
                again=True,
            )
            replica.report(boundary, work, wait=True)

    def _leave(self, reason: str) -> None:
        """Leave once, for whatever reason."""
        with self._termination.leaving():
            replica, self._replica = self._replica, None
            if replica is not None:
                log.info("leaving", job=self.run_file.job, reason=reason)
                replica.leave(reason)
