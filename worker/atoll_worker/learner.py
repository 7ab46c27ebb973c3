"""The public Learner: a few lines in any PyTorch training loop make it one learner of a job."""

import math
import operator
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.errors import SpecError
from atoll_protos.run import RunFile
from atoll_worker.link.messages import Boundary
from atoll_worker.settings import Settings, read_settings
from atoll_worker.training.rates import Followers, Scheduler
from atoll_worker.training.replica import Replica, Work, open_replica
from atoll_worker.training.staging import Scalar
from atoll_worker.training.termination import Termination

POLL_SECONDS = 0.2  # how soon a wait sees SIGTERM

log = structlog.get_logger()


class Learner:
    """One model replica of a job, used around an ordinary training loop:

        with Learner(model, optimizer) as learner:
            while not learner.finished:
                loss = model.loss(data.at(learner.cursor))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                learner.step(tokens=loss_tokens, loss=loss)

    `model` holds the parameters that `optimizer` steps: float32, bfloat16 or float16, on one
    device. What travels of it: see `parameters.travelling`. On entering, the model takes the
    job's values; its own initial value is used only if it is the first one there, so it must be
    a function of the job's seed (`learner.seed`) alone. Inside, values change at `step()` only.

    Job, slot and syncer come from the arguments or else from the environment: ATOLL_RUN_FILE,
    ATOLL_ENDPOINTS, ATOLL_SLOT, and optionally ATOLL_UID, ATOLL_INSTANCE, ATOLL_TELEMETRY_DIR.
    With settings whose overlap is 1 or more, and not in lock-step, `step()` never waits.

    Entering and `step()` raise LearnerError, with an `exit_code`, when this process is refused
    (77: superseded; 65: another model or job) or has lost its transport process (75), and
    SpecError for wrong arguments. SIGTERM, unless the user handles it, leaves the job and exits
    with 0; any exception leaves the job and propagates.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        run_file: str | Path | RunFile | None = None,
        endpoints: Sequence[str] = (),
        slot: str = "",
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._arguments = (run_file, tuple(endpoints), slot)
        self._settings: Settings | None = None
        self._replica: Replica | None = None
        self._open = False
        self._termination = Termination()
        self._followers = Followers()
        self._readings: deque[Scalar] = deque()
        self._loss = math.nan
        self._own_steps = 0
        self._tokens = 0
        self._cursor = 0
        self._left_at = 0.0  # when the last step() returned, monotonic
        self._blocked_seconds = 0.0  # how long it took

    @property
    def finished(self) -> bool:
        """Whether every shard has said Final and its last values were adopted: end the loop."""
        return self._replica is not None and self._replica.finished

    @property
    def tick(self) -> int:
        """The job's step: the lowest tick over the shards, as last heard. Never goes back."""
        return self._replica.tick if self._replica else 0

    @property
    def own_steps(self) -> int:
        """Optimizer steps of this learner since it was started; 0 after every restart."""
        return self._own_steps

    @property
    def slot(self) -> str:
        """Its name in the job: region and ordinal."""
        return self._job.slot

    @property
    def seed(self) -> int:
        """The job's seed, for data and initial values."""
        return self._job.run_file.seed

    @property
    def run_file(self) -> RunFile:
        """The job."""
        return self._job.run_file

    @property
    def cursor(self) -> int:
        """Where this slot's data goes on: the first batch (or what `cursor=` counts) not trained.

        Known once entered. It outlives this process, so data must be a function of seed, slot and
        cursor alone (PROTOCOL.md, rules 26 and 28).
        """
        return self._cursor

    @property
    def total_ticks(self) -> int | None:
        """The job's length in ticks (`spec.steps`); None when it is given in tokens."""
        return self._job.run_file.steps

    @property
    def progress(self) -> float:
        """How much of the job is done, 0.0 to 1.0.

        For a length in tokens it is an estimate from this learner's tokens per step, and 0.0 until
        the first `step()`.
        """
        total_ticks = self.total_ticks or self._estimated_ticks()
        return min(1.0, self.tick / total_ticks) if total_ticks else 0.0

    def schedule(self, scheduler: Scheduler) -> None:
        """Let a `torch.optim.lr_scheduler` follow the job's tick; do not step it yourself.

        Call it before or after entering. Plateau schedulers do not fit: they need a metric.
        """
        self._followers.schedulers.append(scheduler)
        self._followers.move(self.tick, optimizer_has_stepped=self._own_steps > 0)

    def step(
        self, *, tokens: int, loss: float | Tensor | None = None, cursor: int | None = None
    ) -> None:
        """After `optimizer.step()`: count the step, adopt what has arrived, hand over captures.

        `tokens`: trained in this step, all accumulated micro-batches together. `loss`: a number
        or a one-element tensor; on an accelerator it is read one step later, nothing waits.
        `cursor`: where the slot's data goes on; without it one more than before.
        """
        begun = time.monotonic()
        replica = self._inside
        step_seconds = begun - self._left_at
        tokens, cursor = self._checked(tokens, cursor)
        with self._termination.held():
            self._own_steps += 1
            self._tokens += tokens
            self._cursor = cursor
            replica.proceed = False
            self._read(loss)
            work = replica.obey()
            replica.report(self._boundary(work, tokens, step_seconds), work)
            if self._job.run_file.sync.lockstep:
                replica.settle(wait=True)
                self._wait(replica, lambda: replica.proceed or replica.finished)
            self._followers.move(replica.tick, optimizer_has_stepped=True)
        self._left_at = time.monotonic()
        self._blocked_seconds = self._left_at - begun

    def __enter__(self) -> Self:
        """Join the job and take its values; returns when training may begin."""
        run_file, endpoints, slot = self._arguments
        self._settings = read_settings(run_file=run_file, endpoints=endpoints, slot=slot)
        self._check_optimizer()
        self._termination.install()
        try:
            with self._termination.held():
                self._replica = open_replica(self.model, self._job)
                self._open = True
                self._begin(self._replica)
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
        """Leave the job with a reason."""
        self._leave(reason_of(error) if error else "finished" if self.finished else "loop ended")

    def _estimated_ticks(self) -> int | None:
        """The length of a job in tokens, if every slot trains as many tokens per step as this."""
        run_file = self._job.run_file
        if run_file.tokens is None or not self._tokens:
            return None
        tokens_per_tick = self._tokens / self._own_steps * len(run_file.slots)
        return max(1, math.ceil(run_file.tokens / tokens_per_tick))

    @property
    def _job(self) -> Settings:
        if self._settings is None:
            raise RuntimeError("a Learner is used as `with Learner(model, optimizer) as learner:`")
        return self._settings

    @property
    def _inside(self) -> Replica:
        if self._replica is None or not self._open:
            raise RuntimeError("step() belongs inside `with Learner(model, optimizer) as learner:`")
        return self._replica

    def _begin(self, replica: Replica) -> None:
        log.info("joining", job=self._job.run_file.job, slot=self.slot)
        self._wait(replica, lambda: replica.start is not None)
        assert replica.start is not None
        self._cursor = replica.start.cursor
        self._followers.move(replica.tick, optimizer_has_stepped=False)
        self._left_at = time.monotonic()
        log.info(
            "training",
            job=self._job.run_file.job,
            slot=self.slot,
            incarnation=replica.start.incarnation,
            cursor=self._cursor,
            tick=replica.tick,
        )

    def _wait(self, replica: Replica, over: Callable[[], bool]) -> None:
        """Obey the transport until `over`: at the start, and in lock-step at a hand-over."""
        while not over():
            self._termination.check()
            replica.link.wait(POLL_SECONDS)
            if work := replica.obey():
                replica.report(self._boundary(work), work, wait=True)

    def _boundary(self, work: Work, tokens: int = 0, step_seconds: float | None = None) -> Boundary:
        """Of a step, or without `step_seconds` of more work at the same boundary."""
        return Boundary(
            own_steps=self._own_steps,
            tokens=tokens,
            loss=self._loss,
            step_seconds=step_seconds or 0.0,
            blocked_seconds=0.0 if step_seconds is None else self._blocked_seconds,
            cursor=self._cursor,
            adopted=tuple(work.adopted),
            captured=tuple(work.captured),
            again=step_seconds is None,
        )

    def _read(self, loss: float | Tensor | None) -> None:
        """Note a loss, and keep the newest that is known."""
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise SpecError("loss", f"has shape {tuple(loss.shape)}", "give one number")
            self._readings.append(self._inside.staging.scalar(loss))
        elif loss is not None:
            self._loss = float(loss)
        while self._readings and self._readings[0].ticket.done():
            self._loss = self._readings.popleft().host.item()

    def _checked(self, tokens: int, cursor: int | None) -> tuple[int, int]:
        try:
            tokens = operator.index(tokens)
            cursor = self._cursor + 1 if cursor is None else operator.index(cursor)
        except TypeError as error:
            raise SpecError(
                "step", f"{error}", "give tokens and cursor as whole numbers"
            ) from error
        if tokens < 1:
            raise SpecError("tokens", f"is {tokens}", "give the tokens trained since the last step")
        if cursor < self._cursor:
            raise SpecError("cursor", f"went from {self._cursor} back to {cursor}", "let it grow")
        return tokens, cursor

    def _check_optimizer(self) -> None:
        stepped = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        if stepped.isdisjoint(id(each) for each in self.model.parameters()):
            raise SpecError(
                "optimizer",
                "steps none of the model's parameters",
                "build it from the parameters of the model that you give to Learner",
            )

    def _leave(self, reason: str) -> None:
        with self._termination.leaving():
            if self._replica is not None and self._open:
                self._open = False
                log.info("leaving", job=self.run_file.job, slot=self.slot, reason=reason)
                self._replica.leave(reason)


def reason_of(error: BaseException) -> str:
    """Why a process leaves, in words for Leave."""
    match error:
        case SystemExit(code=0):
            return "terminated"
        case KeyboardInterrupt():
            return "interrupted"
        case _:
            return f"{type(error).__name__}: {error}"
