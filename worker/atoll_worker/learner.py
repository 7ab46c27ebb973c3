"""The public Learner: a few lines in any PyTorch training loop make it one learner of a job."""

import atexit
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from atoll_protos.errors import SpecError
from atoll_protos.exits import TERMINATED
from atoll_protos.run import RunFile
from atoll_worker import presence
from atoll_worker.errors import install_excepthook, reason_of, uncaught
from atoll_worker.link.messages import Boundary, JobLength
from atoll_worker.ranks import boxes, states
from atoll_worker.ranks.group import Group, open_group
from atoll_worker.settings import Job, read_job
from atoll_worker.training import last_words, opening, optimizers, refusals
from atoll_worker.training.alone import Alone
from atoll_worker.training.counts import Counts
from atoll_worker.training.data_state import DataState
from atoll_worker.training.last_words import ALL_DONE, IN_ORDER, LOOP_ENDED
from atoll_worker.training.misuse import StepWatch
from atoll_worker.training.obeying import BoundaryWork
from atoll_worker.training.opening import Side
from atoll_worker.training.rates import Scheduler, Schedules
from atoll_worker.training.replica import POLL_SECONDS, Replica
from atoll_worker.training.termination import Termination

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


class Learner:
    """One model replica of a job, used around an ordinary training loop:

        with Learner(model) as learner:
            while not learner.finished:
                loss = model.loss(data.at(learner.cursor))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                learner.step(tokens=tokens_of_the_batch, loss=loss)

    `model` holds the parameters that are trained: float32, bfloat16 or float16, on one device. All
    trainable parameters and floating-point buffers are exchanged (docs/training-scripts.md, "What
    travels"). On entering, the model takes the job's values. Its own initial values are used only
    if this learner is the first of the job, so they must be a function of the job's seed
    (`atoll.job().seed`) or constant. `optimizer`, one or a sequence of several, is checked to step
    this model, and is the one whose rates a function given to `schedule()` sets.

    **What happens at a step boundary**, which is the call of `step()`:

    1. The step is counted, with its tokens, for every slice of the model.
    2. Values that have arrived from the shards since the last boundary are adopted: they overwrite
       the slice (or are blended with it, if `spec.sync.adopt` says so). The optimizer's moments
       stay as they are.
    3. Slices that a shard has called for, or that will soon be due, are copied to memory which the
       transport process shares. It forms the offers from these copies while training continues.
    4. Schedules given to `schedule()` are moved to the job's tick.
    5. The functions given to `on_adopt()` are called if anything was adopted.

    Nothing else ever changes the model. A boundary waits neither for the network nor for
    the device; only in lock-step modes (overlap 0, or a preset in which all learners wait for each
    other) `step()` returns when the values of the round are adopted.

    `export_files` go into the exported model's folder: a tokenizer or whatever else has
    `save_pretrained`, and paths of small files. config.json of a transformers model goes by itself.

    Job, slot and the syncer's addresses come from the arguments or else from the environment: see
    `atoll.job`. Without any of them the learner is alone: every step is a tick, nothing is adopted
    or exported, and it is finished after ATOLL_STEPS steps (100).

    A learner may be several processes, the *ranks* of torch.distributed (torchrun; DDP, FSDP2,
    HSDP, tensor parallelism, pipelines): all of them run the same lines after
    `init_process_group`, and entering and `step()` wait for all. `group` are the processes of this
    learner, by default all. Rank 0 speaks with the job; tokens, loss and cursor are those that it
    gives, and all ranks read the same `finished`, `tick` and `cursor`. Each rank may keep a data
    state of its own. A rank that has lost another one ends with 75. `model` may be the list of the
    parts that a rank has, and nothing of them need be trainable, as long as some rank trains
    something (docs/learners.md).

    One Learner may be open in a process at a time. Entering and
    `step()` raise LearnerError, with an `exit_code`, when the job refuses this process (77: another
    process has taken its slot; 65: another model or job) or when its transport process has died
    (75), and SpecError for wrong arguments or environment. A script that lets them pass exits with
    these codes. SIGTERM, unless the user handles it, leaves the job and exits with 0; any exception
    leaves the job and propagates.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        group: ProcessGroup | None = None,
        run_file: str | Path | RunFile | None = None,
        endpoints: Sequence[str] = (),
        slot: str = "",
        export_files: Sequence[object] = (),
    ) -> None:
        install_excepthook()
        self.model = model
        self.optimizer = optimizer
        self._arguments = (run_file, tuple(endpoints), slot)
        self._export_files = tuple(export_files)
        self._known_job: Job | None = None
        self._group = group
        self._ranks: Group | None = None  # None: this process is the learner
        self._replica: Side | None = None
        self._open = False
        self._termination = Termination()
        self._schedules = Schedules()
        self._hooks = optimizers.Hooks()
        self._watch: StepWatch | None = None
        self._on_adopt: list[Callable[[tuple[str, ...]], object]] = []
        self._counts = Counts()
        self._state: bytes | None = None  # with which the slot goes on

    # ------------------------------------------------------------ what a script may ask

    @property
    def finished(self) -> bool:
        """Whether the job is over and its final values are in the model: end the loop.

        From then on `step()` counts nothing and puts the final values in place again, so that a
        trainer that makes some more steps ends with the job's values all the same.
        """
        return self._replica is not None and self._replica.finished

    @property
    def tick(self) -> int:
        """The job's clock: the lowest tick over the shards, as last received. Never goes back."""
        return self._replica.tick if self._replica else 0

    @property
    def own_steps(self) -> int:
        """Optimizer steps of this learner since it was started; 0 after every restart."""
        return self._counts.own_steps

    @property
    def total_ticks(self) -> int | None:
        """The job's length in ticks (`spec.steps`), which may change; None when it is in tokens."""
        return self._length().steps

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
        self._hear()
        return self._counts.cursor

    @property
    def state(self) -> bytes | None:
        """The data state with which the slot goes on: the one of the cursor known on entering.

        It is what `step(state=...)` of the slot's last learner gave in the step at which the cursor
        had that value, never one of an earlier or later step. None for a slot's first learner, if
        the script gave none in that step, if the job's storage was lost since, and if the states of
        several ranks were kept and this learner has another number of them; then find the place in
        the data by the cursor. It does not change while training.

        Of several ranks each gets what the same rank gave, or what rank 0 gave if no other did.
        """
        return self._state

    # ------------------------------------------------------------ what a script may set up

    def schedule(self, schedule: Scheduler | Callable[[float], float]) -> None:
        """Let the learning rate follow the job's tick.

        `schedule` is a `torch.optim.lr_scheduler`, or a function from the progress of the job (0.0
        to 1.0) to a factor of the initial rate of every parameter group of the optimizers that
        were given to Learner or to `follow()`; a rank without anything trainable needs none. A
        scheduler is moved by Atoll alone, up to the job's length: its own `step()` does nothing
        from now on. The rates of its optimizer are put in place again before each step, so that no
        other schedule changes them.

        Call it before or after entering. Raises SpecError for a scheduler that needs a metric
        (ReduceLROnPlateau), and for one that ends before the job.
        """
        known = optimizers.listed(self.optimizer)
        if self._hooks.followed and self._hooks.followed not in known:
            known = (*known, self._hooks.followed)
        trains = bool(known) or refusals.trains(refusals.modules_of(self.model))
        self._schedules.add(schedule, ticks_max=self.total_ticks, optimizers=known, trains=trains)
        self._move_schedules()

    def follow(
        self,
        optimizer: Optimizer,
        *,
        tokens: int | Callable[[], int],
        loss: Callable[[], float | Tensor | None] | None = None,
        state: Callable[[], bytes] | None = None,
    ) -> None:
        """Call `step()` by itself after every step of `optimizer`, for trainers with a loop inside.

        `tokens` is the number of tokens of one optimizer step, or a function that returns it;
        `loss` is a function that returns the newest loss, `state` one that returns the data state
        (see `step`). Where several optimizers make up one step of the model (Muon and AdamW),
        follow the one that steps last: each of its steps counts as one. A step that GradScaler
        skips counts for nothing.

        End the trainer's loop when `finished` is true. Steps that it makes after that change
        nothing: the final values are put in place after each. `close()` ends the following.

        Raises SpecError if an optimizer is followed already.
        """

        def count() -> None:
            if self._open:
                trained = tokens() if callable(tokens) else tokens
                self._step(trained, loss=loss() if loss else None, cursor=None, state=state)

        self._look_no_more()
        inner = optimizers.unwrapped(optimizer)
        self._hooks.follow(inner, count)
        self._draw_before(inner)

    def on_adopt(self, function: Callable[[tuple[str, ...]], object]) -> None:
        """Call `function(names)` whenever values of the job were put into the model.

        `names` are tensors of the model as in `Step.adopted`. It is called at the end of `step()`
        and of entering; if the model has taken the job's values already, also at once. For
        optimizers with copies of their own (f32 masters, averages): copy the model's values into
        them. What it raises ends `step()`. Raises SpecError for what cannot be called.
        """
        if not callable(function):
            raise SpecError(
                "on_adopt",
                f"{type(function).__name__} cannot be called",
                "give a function of the names of the tensors that were adopted",
            )
        self._on_adopt.append(function)
        if self._open and self._replica is not None and not isinstance(self._replica, Alone):
            self._replica.trust()
            function(self._replica.names(BoundaryWork(assigned=dict.fromkeys(self._replica.held))))

    # ------------------------------------------------------------ the loop

    def step(
        self,
        *,
        tokens: int,
        loss: float | Tensor | None = None,
        cursor: int | None = None,
        state: DataState | None = None,
    ) -> Step:
        """Call it once after every `optimizer.step()`; the class says what happens then.

        `tokens`: the tokens trained in this step, all accumulated micro-batches together; 1 or
        more. `loss`: a number or a one-element tensor in nats, for telemetry; on an accelerator it
        is read one step later, so that nothing waits. `cursor`: where the slot's data goes on;
        without it, one more than before. It never goes back. `state`: what the data pipeline needs
        to go on there, at most 1 MiB: bytes, or a function that returns bytes (read them with
        `torch.load(..., weights_only=True)`, since they come over the network). A function is
        called before `step()` returns, and only where its bytes will be kept, so it costs nothing
        in most steps. Give a state in every step, since nobody knows beforehand with which one the
        slot goes on; the cursor must grow then.
        Of several ranks each may give its own, 1 MiB together; equal ones count once.

        Raises SpecError for wrong arguments, and while an optimizer is followed; LearnerError as
        the class says.
        """
        if self._hooks.followed is not None and self._open:
            raise SpecError(
                "step",
                "the learner follows an optimizer, whose steps count by themselves",
                "leave out learner.step(), or learner.follow()",
            )
        return self._step(tokens, loss=loss, cursor=cursor, state=state)

    def _step(
        self,
        tokens: int,
        *,
        loss: float | Tensor | None,
        cursor: int | None,
        state: DataState | None,
    ) -> Step:
        """A step boundary, whoever calls for it."""
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
                counts.losses.note(loss, replica.scalar)
            work = replica.apply_commands()
            if self._ranks is not None:
                self._ranks.count(counts.tokens, counts.cursor)
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

    def open(self) -> Self:
        """Join the job and take its values; return when training may begin.

        The same as entering a `with`, for notebooks and for the callbacks of a trainer; `close()`
        is the other end.
        """
        if self._replica is not None:
            raise RuntimeError("a Learner is opened once: make a new one, also for the same model")
        refusals.check_ranks()

        def modules() -> tuple[nn.Module, ...]:
            return refusals.modules_of(self.model)

        ranks = self._ranks = open_group(self._group, cut=lambda: refusals.is_cut(modules()))
        try:
            models = ranks.agree(modules) if ranks else modules()
            boxes.reshard(boxes.sharded_modules(models))
            steps = optimizers.listed(self.optimizer)
            told = bool(self._on_adopt)
            job = opening.agreed(models, lambda: self._job, ranks, steps=steps, told=told)
            instance = presence.take(self, job.instance)
            self._termination.install()
            with self._termination.deferred():
                self._replica = opening.open_side(
                    models, job, instance, ranks, files=self._export_files, steps=steps
                )
                if job.alone and ranks is not None:  # each rank counts its own steps, and may
                    ranks.leave(in_order=True)  # end before the others
                    self._ranks = None
                if self._on_adopt and not isinstance(self._replica, Alone):
                    self._replica.trust()
                self._open = True
                atexit.register(self._at_exit)
                for optimizer in steps:
                    self._draw_before(optimizer)
                works = self._begin(self._replica)
                self._look_at_steps(models, steps)
            self._done(self._replica, works)
        except BaseException as error:
            self._leave(reason_of(error))
            raise
        self._counts.leave()
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Leave the job, telling it why; in a pod, the kubelet too once training is over.

        `error`: the exception that ends the training, if one does. Closing twice is right. Raises
        LearnerError (75) where that error has come because another rank of this learner is lost.
        """
        loss = self._ranks.loss(error) if error and self._ranks and self._open else None
        error, cause = loss or error, error
        reason = reason_of(error) if error else ALL_DONE if self.finished else LOOP_ENDED
        if self._open and self._is_head and presence.holds(self):
            last_words.say(reason, self.tick, self.total_ticks)
        self._leave(reason)
        if loss is not None:
            raise loss from cause

    def __enter__(self) -> Self:
        """Join the job and take its values, unless `open()` has done so."""
        return self if self._open else self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the job, telling it why."""
        self.close(error)

    # ------------------------------------------------------------ steps

    @property
    def _job(self) -> Job:
        """Read when it is first asked for, which may be before entering."""
        if self._known_job is None:
            run_file, endpoints, slot = self._arguments
            self._known_job = read_job(run_file=run_file, endpoints=endpoints, slot=slot)
        return self._known_job

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

    def _look_at_steps(self, models: Sequence[nn.Module], steps: Sequence[Optimizer]) -> None:
        """The head notices a script that calls `step()` at the wrong places."""
        if self._is_head and self._hooks.followed is None:
            side = self._replica
            tell = side.warn if isinstance(side, Replica) else log.warning
            self._watch = StepWatch(models=models, given=steps, tell=tell)
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
        """What the job is told of a boundary, with the data states of all ranks."""
        state = self._counts.state(work)
        if self._ranks is not None and work.captured:
            state = self._ranks.state(state)
        return self._counts.boundary(work, state, tokens, step_seconds)

    def _begin(self, replica: Side) -> list[BoundaryWork]:
        """Wait until the transport says Start: the model then has the job's values."""
        job = self._job
        if not job.alone and self._is_head:
            log.info("joining", job=job.run_file.job, slot=self.slot)
        works = self._wait(replica, lambda: replica.start is not None)
        assert replica.start is not None
        self._counts.cursor = replica.start.cursor
        rank, size = (self._ranks.rank, self._ranks.size) if self._ranks else (0, 1)
        self._state, missing = states.share(replica.start.data_state, rank, size)
        if missing and isinstance(replica, Replica):
            replica.warn(missing)
        self._move_schedules()
        if not job.alone and self._is_head:
            log.info(
                "training",
                job=job.run_file.job,
                slot=self.slot,
                incarnation=replica.start.incarnation,
                cursor=self._counts.cursor,
                tick=replica.tick,
            )
        return works

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
        """What a boundary has done; those who asked for it are told of adoptions."""
        assigned = {key: None for work in works for key in work.assigned}
        names = replica.names(BoundaryWork(assigned=assigned))
        for function in self._on_adopt if names else ():
            function(names)
        return Step(adopted=names, tick=replica.tick, finished=replica.finished)

    def _move_schedules(self) -> None:
        """To the job's tick; before entering that is 0."""
        self._schedules.move_to(self.tick, self.progress)

    def _length(self) -> JobLength:
        """How long the job is, as far as this learner has heard."""
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
                    if not self._job.alone and self._is_head:
                        log.info("leaving", job=self.run_file.job, slot=self.slot, reason=reason)
                    self._replica.leave(reason)
            finally:
                presence.release(self)
                atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """The process ends and nobody has closed: the job is told all the same."""
        error = uncaught()
        terminated = TERMINATED if self._termination.requested else "the process has ended"
        self._leave(reason_of(error) if error else terminated)
