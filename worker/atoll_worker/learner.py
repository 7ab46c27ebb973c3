"""The public Learner: a few lines in any PyTorch training loop make it one learner of a job."""

import contextlib
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
from atoll_protos.exits import FINISHED
from atoll_protos.run import RunFile
from atoll_worker.link.messages import Boundary
from atoll_worker.settings import Settings, read_settings
from atoll_worker.training.rates import Scheduler, TickSchedules
from atoll_worker.training.replica import BoundaryWork, Replica, open_replica
from atoll_worker.training.staging import Scalar
from atoll_worker.training.termination import Termination

TERMINATION_LOG = Path("/dev/termination-log")  # a container's last words, in Kubernetes
POLL_SECONDS = 0.2  # a waiting thread looks for SIGTERM this often

log = structlog.get_logger()


class Learner:
    """One model replica of a job, used around an ordinary training loop:

        with Learner(model, optimizer) as learner:
            while not learner.finished:
                loss = model.loss(data.at(learner.cursor))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                learner.step(tokens=tokens_of_the_batch, loss=loss)

    `model` holds the parameters that `optimizer` steps: float32, bfloat16 or float16, on one
    device. All trainable parameters and floating-point buffers are exchanged
    (docs/training-scripts.md, "What travels"). On entering, the model takes the job's values. Its
    own initial values are used only if this learner is the first of the job, so they must be a
    function of the job's seed (`atoll.read_settings().seed`) or constant.

    **What happens at a step boundary**, which is the call of `step()`:

    1. The step is counted, with its tokens, for every slice of the model.
    2. Values that have arrived from the shards since the last boundary are adopted: they overwrite
       the slice (or are blended with it, if `spec.sync.adopt` says so). The optimizer's moments
       stay as they are.
    3. Slices that a shard has called for, or that will soon be due, are copied to memory which the
       transport process shares. It forms the offers from these copies while training goes on.
    4. Schedules given to `schedule()` are moved to the job's tick.

    Nothing else ever changes the model. A boundary waits neither for the network nor for
    the device; only in lock-step modes (overlap 0, or a preset in which all learners wait for each
    other) `step()` returns when the values of the round are adopted.

    Job, slot and the syncer's addresses come from the arguments or else from the environment: see
    `atoll.read_settings`.

    Entering and `step()` raise LearnerError, with an `exit_code`, when the job refuses this process
    (77: another process has taken its slot; 65: another model or job) or when its transport process
    has died (75), and SpecError for wrong arguments or environment. SIGTERM, unless the user
    handles it, leaves the job and exits with 0; any exception leaves the job and propagates.
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
        self._schedules = TickSchedules()
        self._losses: deque[Scalar] = deque()  # not yet read from the device
        self._loss = math.nan
        self._own_steps = 0
        self._tokens = 0
        self._cursor = 0
        self._left_at = 0.0  # when the last step() returned, monotonic
        self._blocked_seconds = 0.0  # how long the last step() took

    @property
    def finished(self) -> bool:
        """Whether the job is over and its final values are in the model: end the loop."""
        return self._replica is not None and self._replica.finished

    @property
    def tick(self) -> int:
        """The job's clock: the lowest tick over the shards, as last received. Never goes back."""
        return self._replica.tick if self._replica else 0

    @property
    def own_steps(self) -> int:
        """Optimizer steps of this learner since it was started; 0 after every restart."""
        return self._own_steps

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

    @property
    def slot(self) -> str:
        """This learner's name in the job: region and ordinal, such as us-east-0."""
        return self._job.slot

    @property
    def seed(self) -> int:
        """The job's seed, for data and initial values."""
        return self._job.seed

    @property
    def run_file(self) -> RunFile:
        """The job as its processes know it: regions, slots, length, synchronisation settings."""
        return self._job.run_file

    @property
    def cursor(self) -> int:
        """Where this slot's data goes on: the first batch (or what `cursor=` counts) not trained.

        Known once entered. The shards keep it, so it outlives this process; if a batch is a
        function of seed, slot and cursor alone, a restarted learner neither repeats nor skips data
        that is already part of the shared model (docs/protocol.md, rules 26 and 28).
        """
        return self._cursor

    def schedule(self, scheduler: Scheduler) -> None:
        """Let a `torch.optim.lr_scheduler` follow the job's tick; do not step it yourself.

        Call it before or after entering. Schedulers that need a metric (ReduceLROnPlateau) do not
        fit.
        """
        self._schedules.schedulers.append(scheduler)
        self._schedules.move_to(self.tick, optimizer_has_stepped=self._own_steps > 0)

    def step(
        self, *, tokens: int, loss: float | Tensor | None = None, cursor: int | None = None
    ) -> None:
        """Call it once after every `optimizer.step()`; the class says what happens then.

        `tokens`: the tokens trained in this step, all accumulated micro-batches together; 1 or
        more. `loss`: a number or a one-element tensor in nats, for telemetry; on an accelerator it
        is read one step later, so that nothing waits. `cursor`: where the slot's data goes on;
        without it, one more than before. It never goes back.

        Raises SpecError for wrong arguments, LearnerError as the class says.
        """
        begun = time.monotonic()
        replica = self._inside
        step_seconds = begun - self._left_at
        tokens, cursor = self._checked(tokens, cursor)
        with self._termination.deferred():
            self._own_steps += 1
            self._tokens += tokens
            self._cursor = cursor
            replica.proceed = False
            self._note_loss(loss)
            work = replica.apply_commands()
            replica.report(self._boundary(work, tokens, step_seconds), work)
            if self._job.run_file.sync.lockstep:
                replica.settle(wait=True)
                self._wait(replica, lambda: replica.proceed or replica.finished)
            self._schedules.move_to(replica.tick, optimizer_has_stepped=True)
        self._left_at = time.monotonic()
        self._blocked_seconds = self._left_at - begun

    def __enter__(self) -> Self:
        """Join the job and take its values; return when training may begin."""
        run_file, endpoints, slot = self._arguments
        self._settings = read_settings(run_file=run_file, endpoints=endpoints, slot=slot)
        self._check_optimizer()
        self._termination.install()
        try:
            with self._termination.deferred():
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
        """Leave the job, telling it why; in a pod, the kubelet too once training is over."""
        if error is None and self.finished and TERMINATION_LOG.exists():
            with contextlib.suppress(OSError):
                TERMINATION_LOG.write_text(FINISHED)
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
            raise RuntimeError("use a Learner as `with Learner(model, optimizer) as learner:`")
        return self._settings

    @property
    def _inside(self) -> Replica:
        if self._replica is None or not self._open:
            raise RuntimeError(
                "call step() inside `with Learner(model, optimizer) as learner:` only"
            )
        return self._replica

    def _begin(self, replica: Replica) -> None:
        """Wait until the transport says Start: the model then has the job's values."""
        log.info("joining", job=self._job.run_file.job, slot=self.slot)
        self._wait(replica, lambda: replica.start is not None)
        assert replica.start is not None
        self._cursor = replica.start.cursor
        self._schedules.move_to(replica.tick, optimizer_has_stepped=False)
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
        """Carry out commands until `over`: before the first step, and in lock-step modes."""
        while not over():
            self._termination.check()
            replica.link.wait(POLL_SECONDS)
            if work := replica.apply_commands():
                replica.report(self._boundary(work), work, wait=True)

    def _boundary(
        self, work: BoundaryWork, tokens: int = 0, step_seconds: float | None = None
    ) -> Boundary:
        """The message for a step, or without `step_seconds` for more work at the same boundary."""
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

    def _note_loss(self, loss: float | Tensor | None) -> None:
        """Put the reading of a loss in line, and take the newest that the device has finished."""
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise SpecError("loss", f"has shape {tuple(loss.shape)}", "give one number")
            self._losses.append(self._inside.staging.scalar(loss))
        elif loss is not None:
            self._loss = float(loss)
        while self._losses and self._losses[0].ticket.done():
            self._loss = self._losses.popleft().host.item()

    def _checked(self, tokens: int, cursor: int | None) -> tuple[int, int]:
        """The arguments of step() as plain integers; SpecError if they are not whole or go back."""
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
        """Refuse an optimizer of another model, with which training would silently do nothing."""
        stepped = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        if stepped.isdisjoint(id(each) for each in self.model.parameters()):
            raise SpecError(
                "optimizer",
                "steps none of the model's parameters",
                "build it from the parameters of the model that you give to Learner",
            )

    def _leave(self, reason: str) -> None:
        """Leave once, also when `with` ends by a signal, an exception or a failed entry."""
        with self._termination.leaving():
            if self._replica is not None and self._open:
                self._open = False
                log.info("leaving", job=self.run_file.job, slot=self.slot, reason=reason)
                self._replica.leave(reason)


def reason_of(error: BaseException) -> str:
    """Why a process leaves, in words that the shards log and the run folder shows."""
    match error:
        case SystemExit(code=0):
            return "terminated"
        case KeyboardInterrupt():
            return "interrupted"
        case _:
            return f"{type(error).__name__}: {error}"
