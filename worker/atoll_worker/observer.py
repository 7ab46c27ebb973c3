"""The public Observer: receives the job's outer parameters, offers nothing, counts for nothing."""

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
from atoll_worker.learner import POLL_SECONDS, reason_of
from atoll_worker.link.messages import Boundary, Evaluated
from atoll_worker.settings import Settings, read_settings
from atoll_worker.training.replica import Replica, open_replica
from atoll_worker.training.termination import Termination

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The outer parameters at a tick; `model` is the observer's own until the next snapshot."""

    tick: int
    final: bool  # the job's last values
    model: nn.Module


class Observer:
    """Watches the outer parameters of a job from a process of its own:

        with Observer(model) as observer:
            for snapshot in observer.snapshots(every=100):
                observer.report(loss=evaluate(snapshot.model), tokens=count)

    `model` is built like the learners' (the layout is compared) and takes the job's values; each
    slice is the newest that has arrived. Job and syncer as for a Learner; no slot is needed.
    Raises LearnerError and SpecError, and obeys SIGTERM, as Learner does.
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
        self._settings: Settings | None = None
        self._replica: Replica | None = None
        self._termination = Termination()
        self._snapshot: Snapshot | None = None
        self._snapshot_at = 0.0

    @property
    def run_file(self) -> RunFile:
        """The job, once entered."""
        if self._settings is None:
            raise RuntimeError("an Observer is used as `with Observer(model) as observer:`")
        return self._settings.run_file

    @property
    def tick(self) -> int:
        """The job's step, as last heard."""
        return self._replica.tick if self._replica else 0

    def snapshots(self, *, every: int | None = None) -> Iterator[Snapshot]:
        """One of the first values, then when the tick has passed a multiple of `every`.

        `every` is the run file's by default. The final one always comes, as the last. Ticks that
        pass while the caller works are skipped, not queued.
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
            with self._termination.held():
                self._absorb(replica)
        yield self._taken(replica, final=True)

    def report(self, *, loss: float, tokens: int) -> None:
        """What was measured on the newest snapshot: nats per token over `tokens` tokens.

        It reaches `status.progress.metrics` of the job.
        """
        if self._snapshot is None:
            raise RuntimeError("report() belongs inside the loop over snapshots()")
        with self._termination.held():
            self._inside.send(
                Evaluated(
                    tick=self._snapshot.tick,
                    loss=float(loss),
                    tokens=tokens,
                    seconds=time.monotonic() - self._snapshot_at,
                )
            )

    def __enter__(self) -> Self:
        """Join the job; values arrive with the first snapshot."""
        run_file, endpoints = self._arguments
        self._settings = read_settings(observer=True, run_file=run_file, endpoints=endpoints)
        self._termination.install()
        try:
            with self._termination.held():
                self._replica = open_replica(self.model, self._settings, observer=True)
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
            raise RuntimeError("an Observer is used as `with Observer(model) as observer:`")
        return self._replica

    def _taken(self, replica: Replica, *, final: bool) -> Snapshot:
        self._snapshot = Snapshot(tick=replica.tick, final=final, model=self.model)
        self._snapshot_at = time.monotonic()
        return self._snapshot

    def _absorb(self, replica: Replica) -> None:
        """Wait for what comes next and adopt it."""
        replica.link.wait(POLL_SECONDS)
        if work := replica.obey():
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
        with self._termination.leaving():
            replica, self._replica = self._replica, None
            if replica is not None:
                log.info("leaving", job=self.run_file.job, reason=reason)
                replica.leave(reason)
