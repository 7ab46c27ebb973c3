"""The base class of Learner: what it does at its boundaries, on entering and on leaving."""

import atexit
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import structlog
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from atoll_protos.exits import TERMINATED
from atoll_worker import presence
from atoll_worker.errors import install_excepthook, reason_of, uncaught
from atoll_worker.job import Job, read_job
from atoll_worker.link.messages import Boundary, JobLength, LoggedValues
from atoll_worker.ranks import data_states
from atoll_worker.ranks.group import Group
from atoll_worker.script import optimizers
from atoll_worker.script.last_words import IN_ORDER, LOOP_ENDED
from atoll_worker.script.misuse import StepWatch
from atoll_worker.script.rates import Schedules
from atoll_worker.script.termination import Termination
from atoll_worker.training.boundary import BoundaryWork
from atoll_worker.training.counts import Counts
from atoll_worker.training.data_state import DataState
from atoll_worker.training.gpu_health import GpuHealth
from atoll_worker.training.logged_values import Logged, Losses
from atoll_worker.training.replica import POLL_SECONDS, Replica
from atoll_worker.training.side import Side

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happened at a step boundary.

    `adopted`: the tensors (by their names in the model) that were overwritten, whole or in part,
    with values of the job, or blended with them; usually none. `tick`: the job's clock.
    `finished`: the model has the job's final values; end the loop.
    """

    adopted: tuple[str, ...]
    tick: int
    finished: bool


class Loop:
    """The boundaries of a Learner, in whichever way the script calls for them."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        group: ProcessGroup | None = None,
        export_files: Sequence[object] = (),
    ) -> None:
        install_excepthook()
        self.model = model
        self.optimizer = optimizer
        self._export_files = tuple(export_files)
        self._group = group
        self._ranks: Group | None = None  # None: this process is the learner
        self._replica: Side | None = None
        self._open = False
        self._termination = Termination()
        self._schedules = Schedules()
        self._hooks = optimizers.Hooks()
        self._watch: StepWatch | None = None
        self._health: GpuHealth | None = None
        self._on_adopt: list[Callable[[tuple[str, ...]], object]] = []
        self._counts = Counts()
        self._data_state: bytes | None = None  # with which the slot continues
        self._losses = Losses()
        self._logged = Logged()
        self._rank_known: int | None = None  # once entered

    @property
    def finished(self) -> bool:
        """Whether the job is over and its final values are in the model: end the loop.

        From then on `step()` counts nothing and puts the final values in place again, so that a
        trainer that makes some more steps ends with the job's values all the same.
        """
        return self._replica is not None and self._replica.finished

    @property
    def tick(self) -> int:
        """The job's clock: the lowest tick over the shards, as last received. Never goes back.

        In lock-step it is this learner's position, which grows by one in each step.
        """
        return self._replica.tick if self._replica else 0

    @property
    def progress(self) -> float:
        """How much of the job is done, 0.0 to 1.0.

        For a length in tokens it is an estimate from this learner's tokens per step, and 0.0 until
        the first `step()`.
        """
        length = self._length()
        if length.steps is None:
            self._hear()
        return self._counts.progress(self.tick, length, len(self._job.run_file.slots))

    def _step(
        self,
        tokens: int,
        *,
        loss: float | Tensor | None,
        cursor: int | None,
        state: DataState | None,
    ) -> Step:
        begun = time.monotonic()
        if self._watch is not None:
            self._watch.called()
        replica, counts = self._inside, self._counts
        step_seconds = begun - counts.left_at
        self._hear()
        tokens, cursor = counts.given(tokens, cursor, state, is_head=self._is_head)
        if replica.finished:
            self._look_no_more()
            return self._done(replica, [replica.keep_final()])
        with self._termination.deferred():
            replica.step_made()
            counts.count(tokens, cursor)
            replica.proceed = False
            if self._is_head:
                self._losses.note(loss, replica.scalar)
                counts.loss = self._losses.newest
            work = replica.apply_commands()
            if self._ranks is not None:
                self._ranks.count(counts.tokens, counts.cursor)
            self._send_logged(replica)
            replica.report(self._boundary(work, tokens, step_seconds), work)
            works = [work]
            if self._job.run_file.sync.lockstep:
                replica.settle(wait=True)
                works += self._wait(replica, lambda: replica.proceed or replica.finished)
            self._move_schedules()
        counts.blocked_seconds = time.monotonic() - begun
        done = self._done(replica, works)
        counts.leave()
        return done

    @cached_property
    def _job(self) -> Job:
        return read_job()

    @property
    def _is_head(self) -> bool:
        """Whether this process speaks for the learner: it is the only one, or rank 0."""
        return self._ranks is None or self._ranks.is_head

    @property
    def _inside(self) -> Side:
        if self._replica is None or not self._open:
            raise RuntimeError(
                "call step() inside `with Learner(model) as learner:`, or after open()"
            )
        return self._replica

    def _rank(self) -> int:
        """Kept, since a script may end the group in its loop."""
        if self._rank_known is not None:
            return self._rank_known
        here = distributed.is_available() and distributed.is_initialized()
        return distributed.get_rank(self._group) if here else 0

    def _send_logged(self, side: Side) -> None:
        if isinstance(side, Replica):
            for values in self._logged.known():
                side.send(LoggedValues(values=tuple(values.items())))

    def _look_at_steps(self, models: Sequence[nn.Module], steps: Sequence[Optimizer]) -> None:
        """The head notices a script that calls `step()` at the wrong places."""
        if self._is_head and self._hooks.followed is None:
            self._watch = StepWatch(models=models, given=steps, tell=self._inside.warn)
            self._watch.begin()

    def _look_no_more(self) -> None:
        if self._watch is not None:
            self._watch.end()

    def _draw_before(self, optimizer: Optimizer) -> None:
        """The ranks hear the head's commands while this optimizer steps, not in step()."""
        if self._ranks is not None:
            self._hooks.announce(optimizer, self._draw)

    def _draw(self) -> None:
        if self._ranks is not None and self._open and not self.finished:
            with self._termination.deferred():
                self._ranks.draw()

    def _hear(self) -> None:
        """What the head has counted in the last step is what this rank has counted, too."""
        if self._ranks is not None and (said := self._ranks.counted()):
            self._counts.heard(*said)

    def _boundary(
        self, work: BoundaryWork, tokens: int = 0, step_seconds: float | None = None
    ) -> Boundary:
        state = self._counts.state(work)
        if self._ranks is not None and work.captured:
            state = self._ranks.state(state)
        return self._counts.boundary(work, state, tokens, step_seconds)

    def _begin(self, replica: Side) -> list[BoundaryWork]:
        """Wait until the transport says Start: the model then has the job's values."""
        self._say("joining")
        works = self._wait(replica, lambda: replica.start is not None)
        start = replica.start
        assert start is not None
        self._counts.cursor = start.cursor
        rank, size = (self._ranks.rank, self._ranks.size) if self._ranks else (0, 1)
        self._data_state, missing = data_states.share(start.data_state, rank, size)
        if missing and self._is_head:
            replica.warn(missing)
        self._move_schedules()
        training = {"incarnation": start.incarnation, "cursor": start.cursor}
        self._say("training", **training, tick=replica.tick)
        return works

    def _say(self, event: str, **fields: object) -> None:
        if not self._job.alone and self._is_head:
            log.info(event, job=self._job.run_file.job, slot=self._job.slot, **fields)

    def _wait(self, replica: Side, over: Callable[[], bool]) -> list[BoundaryWork]:
        """Carry out commands until `over`: before the first step, and in lock-step modes."""
        works = []
        while not over():
            self._termination.check()
            replica.wait(POLL_SECONDS)
            if work := replica.apply_commands():
                replica.report(self._boundary(work), work, wait=True)
                works.append(work)
        return works

    def _done(self, replica: Side, works: Sequence[BoundaryWork]) -> Step:
        assigned = {key: None for work in works for key in work.assigned}
        names = replica.names(BoundaryWork(assigned=assigned))
        for function in self._on_adopt if names else ():
            function(names)
        return Step(adopted=names, tick=replica.tick, finished=replica.finished)

    def _move_schedules(self) -> None:
        self._schedules.move_to(self.tick, self.progress)

    def _length(self) -> JobLength:
        run_file = self._job.run_file
        heard = self._replica.length if self._replica else None
        return heard or JobLength(steps=run_file.steps, tokens=run_file.tokens)

    def _leave(self, reason: str) -> None:
        """Leave once, also when the training ends by a signal, an exception or a failed entry."""
        with self._termination.leaving():
            if self._ranks is not None:
                early, told = reason == LOOP_ENDED, self._termination.requested
                self._ranks.leave(in_order=reason in IN_ORDER, early=early, told=told)
            self._schedules.close()
            self._hooks.close()
            self._look_no_more()
            try:
                # A fork (a worker of a data loader) ends without a word for its parent.
                if self._replica is not None and self._open and presence.holds(self):
                    self._open = False
                    try:
                        self._say("leaving", reason=reason)
                        self._send_logged(self._replica)
                    finally:  # nobody may read the output any more
                        self._replica.leave(reason)
            finally:
                if self._health is not None:  # last, since a driver may hang before that
                    self._health.close()
                presence.release(self)
                atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """The process ends and nobody has closed: the job is told all the same."""
        error = uncaught()
        terminated = TERMINATED if self._termination.requested else "the process has ended"
        self._leave(reason_of(error) if error else terminated)
