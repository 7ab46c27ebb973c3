"""The public Learner: a few lines in any PyTorch training loop make it one learner of a job."""

import atexit
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

import structlog
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from atoll_protos.errors import SpecError
from atoll_protos.exits import TERMINATED
from atoll_worker.errors import install_excepthook, reason_of, uncaught
from atoll_worker.job import Job, claim_process, holds_process, read_job, release_process
from atoll_worker.link.messages import Boundary, JobLength, LoggedValues
from atoll_worker.ranks import redistribution
from atoll_worker.ranks.group import Group, open_group, share
from atoll_worker.script import optimizers, refusals, termination
from atoll_worker.script.optimizers import Scheduler, Schedules
from atoll_worker.script.refusals import StepWatch
from atoll_worker.script.termination import ALL_DONE, IN_ORDER, LOOP_ENDED, Termination
from atoll_worker.training import device_check, replica
from atoll_worker.training.boundary import BoundaryWork, Counts, DataState
from atoll_worker.training.logged_values import Logged, Losses
from atoll_worker.training.replica import POLL_SECONDS, Replica

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
    """One model replica of a job, used around an ordinary training loop.

        job = atoll.job()
        torch.manual_seed(job.seed)  # all learners begin with the same model
        model, optimizer = build()
        with atoll.Learner(model, optimizer) as learner:
            learner.follow(optimizer, tokens=batch_tokens, loss=lambda: loss)
            while not learner.finished:
                loss = loss_of(model, data.batch(job.index, learner.cursor))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    Instead of `follow()`, call `learner.step(tokens=..., loss=loss)` after each optimizer step.

    `model`: float32, bfloat16 or float16, on one device, or the list of a rank's parts. All
    trainable parameters and floating-point buffers are exchanged (docs/training-scripts.md, "What
    travels"). On entering it takes the job's values; its own are used only if this learner is the
    first of the job, so they must be a function of the job's seed or constant. `optimizer`, one or
    several, is checked to step this model, and is the one whose rates a function given to
    `schedule()` sets. `group`: the processes of this learner,
    by default all of torch.distributed (docs/learners.md).

    At a *step boundary*, the call of `step()`:

    1. The step is counted, with its tokens, for every slice of the model.
    2. Values that have arrived overwrite their slices, or are blended with them
       (`spec.sync.adopt`). The optimizer's moments stay as they are.
    3. Slices that a shard has called for, or that will soon be due, are copied to shared memory,
       where the transport process forms the offers while training continues.
    4. Schedules given to `schedule()` are moved to the job's tick.
    5. The functions given to `on_adopt()` are called if anything was adopted.

    Nothing else changes the model. A boundary waits neither for the network nor for the device, but
    in lock-step modes (overlap 0, some presets) until the values of the round are adopted.

    Of several ranks all run the same lines after `init_process_group`; entering and `step()` wait
    for all. Rank 0 speaks with the job: its tokens, loss and cursor count, and all ranks read the
    same `finished`, `tick` and `cursor`. A rank that has lost another one ends with 75.

    One Learner may be open in a process at a time. Entering and `step()` raise LearnerError, with
    an `exit_code`, when the job refuses this process (77: another process has taken its slot; 65:
    another model or job) or its transport process has died (75), and SpecError for wrong arguments
    or environment. SIGTERM, unless the user handles it, leaves the job and exits with 0; any
    exception leaves the job and propagates.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        group: ProcessGroup | None = None,
    ) -> None:
        install_excepthook()
        self.model = model
        self.optimizer = optimizer
        self._group = group
        self._ranks: Group | None = None  # None: this process is the learner
        self._replica: Replica | None = None
        self._open = False
        self._termination = Termination()
        self._schedules = Schedules()
        self._hooks = optimizers.Hooks()
        self._watch: StepWatch | None = None
        self._end_if_broken: Callable[[BaseException], None] | None = (
            None  # the device, at an error
        )
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
        return self._replica is not None and self._replica.state.finished

    @property
    def tick(self) -> int:
        """The job's clock: the lowest tick over the shards, as last received. Never goes back.

        In lock-step it is this learner's position, which grows by one in each step.
        """
        return self._replica.state.tick if self._replica else 0

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
    def own_steps(self) -> int:
        """Optimizer steps of this learner since it was started; 0 after every restart."""
        return self._counts.own_steps

    @property
    def total_ticks(self) -> int | None:
        """The job's length in ticks (`spec.steps`), which may change; None when it is in tokens."""
        return self._length().steps

    @property
    def slot(self) -> str:
        """This learner's name in the job: region and ordinal, such as us-east-0."""
        return self._job.slot

    @property
    def seed(self) -> int:
        """The job's seed, for data and initial values."""
        return self._job.seed

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0 of the job's first slot, or alone: of a job one is."""
        return self._job.first and self._rank() == 0

    @property
    def cursor(self) -> int:
        """Where this slot's data goes on: the first batch (or what `cursor=` counts) not trained.

        Known once entered. The shards keep it: if a batch is a function of seed, slot and cursor
        alone, a restarted learner neither repeats nor skips data (rules 26 and 28).
        """
        self._hear()
        return self._counts.cursor

    @property
    def data_state(self) -> bytes | None:
        """What `step(state=...)` gave, on this rank, at the cursor that was known on entering.

        None for a slot's first learner, if the script gave none in that step, if the job's storage
        was lost since, and if there is another number of ranks now; then find the place in the data
        by the cursor. Where only rank 0 gave one, all ranks get it.
        """
        return self._data_state

    def epochs(self, length: int | None = None) -> Iterator[int]:
        """Count passes over the data until the job is over, as `while not learner.finished` does.

        `length`: of one pass, in what the cursor counts. The first number is then that of the pass
        in which the slot's data goes on, also after a restart; without it, 0. Raises SpecError for
        a length below 1.
        """
        if length is not None and length < 1:
            raise SpecError("epochs", f"a pass of {length}", "give the batches of one pass")
        epoch = self.cursor // length if length else 0
        while not self.finished:
            yield epoch
            epoch += 1

    def schedule(self, schedule: Scheduler | Callable[[float], float]) -> None:
        """Let the learning rate follow the job's tick; before or after entering.

        `schedule` is a `torch.optim.lr_scheduler`, or a function from the progress of the job (0.0
        to 1.0) to a factor of the initial rate of every parameter group of the optimizers that were
        given to Learner or to `follow()`. A scheduler is moved by Atoll alone, up to the job's
        length: its own `step()` does nothing from now on. Rates are put in place again before each
        step, so that no other schedule changes them. Raises SpecError for one that needs a metric
        or ends before the job.
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

        `tokens` of one optimizer step, or a function that returns them; `loss` and `state` return
        what `step` takes. Where several optimizers make up one step of the model (Muon and AdamW),
        follow the one that steps last. A step that GradScaler skips counts for nothing. Steps after
        `finished` change nothing: the final values are put in place after each. Raises SpecError
        for a second optimizer.
        """

        def count() -> None:
            if self._open:
                trained = tokens() if callable(tokens) else tokens
                self._step(trained, loss=loss() if loss else None, cursor=None, state=state)

        self._look_no_more()
        refusals.check_accelerate(optimizer)
        inner = optimizers.unwrapped(optimizer)
        self._hooks.follow(inner, count)
        self._draw_before(inner)

    def on_adopt(self, function: Callable[[tuple[str, ...]], object]) -> None:
        """Call `function(names)`, as in `Step.adopted`, whenever values of the job came in.

        It is called at the end of `step()` and of entering, or at once if the model has values
        already. For optimizers with copies of their own (f32 masters, averages): copy the model's
        values into them. What it raises ends `step()`. Raises SpecError for what cannot be called.
        """
        if not callable(function):
            remedy = "give a function of the names of the tensors that were adopted"
            raise SpecError("on_adopt", f"{type(function).__name__} cannot be called", remedy)
        self._on_adopt.append(function)
        if self._open and self._replica is not None and self._replica.alone_steps is None:
            function(
                self._replica.state.names(BoundaryWork(assigned=dict.fromkeys(self._replica.held)))
            )

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Draw these values over the job's tick, in this learner's curves (docs/run-folder.md).

        `values`: a number or a one-element tensor for each name; a tensor on an accelerator is read
        later, so that nothing waits. Those of one tick are averaged. Without a run folder (alone or
        on Kubernetes) they go nowhere; of several ranks only what rank 0 gives counts.

        Raises SpecError for what is not one number, and for `loss` and `tokens_per_second`, which
        `step()` and `follow()` report; RuntimeError outside of `with` or `open()`.
        """
        side = self._inside
        if side.owner is not None:
            self._logged.note(values, side.scalar)
            self._send_logged(side)

    def step(
        self,
        *,
        tokens: int,
        loss: float | Tensor | None = None,
        cursor: int | None = None,
        state: DataState | None = None,
    ) -> Step:
        """Call it once after every `optimizer.step()`; the class says what happens then.

        `tokens`: those trained in this step, all accumulated micro-batches together; 1 or more.
        `loss`: a number or a one-element tensor in nats; on an accelerator it is read one step
        later, so that nothing waits. `cursor`: where the slot's data goes on; without it, one more
        than before. It never goes back. `state`: what the data pipeline needs to go on there, bytes
        or a function that returns them, at most 1 MiB of all ranks together, equal ones counted
        once (read them with `torch.load(..., weights_only=True)`, since they come over the
        network). A function is called only where its bytes will be kept. Give a state in every
        step: nobody knows beforehand which one is used. The cursor must grow then.

        Raises SpecError for wrong arguments, and while an optimizer is followed; LearnerError as
        above.
        """
        if self._hooks.followed is not None and self._open:
            problem = "the learner follows an optimizer, whose steps count by themselves"
            raise SpecError("step", problem, "leave out learner.step(), or learner.follow()")
        return self._step(tokens, loss=loss, cursor=cursor, state=state)

    def open(self) -> Self:
        """Join the job and take its values, as entering does: for notebooks and callbacks."""
        if self._replica is not None:
            raise RuntimeError("a Learner is opened once: make a new one, also for the same model")
        refusals.check_ranks()
        refusals.check_accelerate(self.optimizer)
        self._rank_known = self._rank()

        def modules() -> tuple[nn.Module, ...]:
            return refusals.modules_of(self.model)

        ranks = self._ranks = open_group(self._group, cut=lambda: refusals.is_cut(modules()))
        try:
            models = ranks.agree(modules) if ranks else modules()
            redistribution.reshard(redistribution.sharded_modules(models))
            steps = optimizers.listed(self.optimizer)
            told = bool(self._on_adopt)
            job = replica.agreed(models, lambda: self._job, ranks, steps=steps, told=told)
            job = replace(job, instance=claim_process(self, job.instance))
            self._termination.install()
            with self._termination.deferred():
                self._replica = replica.open_for(models, job, ranks, steps=steps)
                if job.alone and ranks is not None:  # each rank counts its own steps, and may
                    ranks.leave(in_order=True)  # end before the others
                    self._ranks = None
                self._open = True
                atexit.register(self._at_exit)
                self._end_if_broken = partial(device_check.end_if_broken, models=models, job=job)
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
        if error is not None and self._end_if_broken is not None:
            self._end_if_broken(error)
        loss = self._ranks.loss(error) if error and self._ranks and self._open else None
        error, cause = loss or error, error
        reason = reason_of(error) if error else ALL_DONE if self.finished else LOOP_ENDED
        if self._open and self._is_head and holds_process(self):
            termination.say(reason, self.tick, self.total_ticks)
        self._leave(reason)
        if loss is not None:
            raise loss from cause

    def __enter__(self) -> Self:
        return self if self._open else self.open()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

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
        if replica.state.finished:
            self._look_no_more()
            return self._done(replica, [replica.state.keep_final(replica)])
        with self._termination.deferred():
            replica.step_made()
            counts.count(tokens, cursor)
            replica.state.proceed = False
            if self._is_head:
                self._losses.note(loss, replica.scalar)
                counts.loss = self._losses.newest
                counts.first_losses = self._losses.first_digest
            work = replica.apply_commands()
            if self._ranks is not None:
                self._ranks.count(counts.tokens, counts.cursor)
            self._send_logged(replica)
            replica.report(self._boundary(work, tokens, step_seconds), work)
            works = [work]
            if self._job.run_file.sync.lockstep:
                replica.settle(wait=True)
                works += self._wait(
                    replica, lambda: replica.state.proceed or replica.state.finished
                )
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
    def _inside(self) -> Replica:
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

    def _send_logged(self, side: Replica) -> None:
        if side.owner is not None:
            for values in self._logged.known():
                side.send(LoggedValues(values=tuple(values.items())))

    def _look_at_steps(self, models: Sequence[nn.Module], steps: Sequence[Optimizer]) -> None:
        """Warn, on the head, of a script that calls `step()` at the wrong places."""
        if self._is_head and self._hooks.followed is None:
            self._watch = StepWatch(models=models, given=steps, tell=self._inside.warn)
            self._watch.begin()

    def _look_no_more(self) -> None:
        if self._watch is not None:
            self._watch.end()

    def _draw_before(self, optimizer: Optimizer) -> None:
        """Receive the head's commands while this optimizer steps, not in step()."""
        if self._ranks is not None:
            self._hooks.announce(optimizer, self._draw)

    def _draw(self) -> None:
        if self._ranks is not None and self._open and not self.finished:
            with self._termination.deferred():
                self._ranks.draw()

    def _hear(self) -> None:
        """Take what the head has counted in the last step as this rank's count."""
        if self._ranks is not None and (said := self._ranks.counted()):
            self._counts.heard(*said)

    def _boundary(
        self, work: BoundaryWork, tokens: int = 0, step_seconds: float | None = None
    ) -> Boundary:
        state = self._counts.state(work)
        if self._ranks is not None and work.captured:
            state = self._ranks.state(state)
        return self._counts.boundary(work, state, tokens, step_seconds)

    def _begin(self, replica: Replica) -> list[BoundaryWork]:
        """Wait until the transport says Start: the model then has the job's values."""
        self._say("joining")
        works = self._wait(replica, lambda: replica.state.start is not None)
        start = replica.state.start
        assert start is not None
        self._counts.cursor = start.cursor
        rank, size = (self._ranks.rank, self._ranks.size) if self._ranks else (0, 1)
        self._data_state, missing = share(start.data_state, rank, size)
        if missing and self._is_head:
            replica.warn(missing)
        self._move_schedules()
        training = {"incarnation": start.incarnation, "cursor": start.cursor}
        self._say("training", **training, tick=replica.state.tick)
        return works

    def _say(self, event: str, **fields: object) -> None:
        if not self._job.alone and self._is_head:
            log.info(event, job=self._job.run_file.job, slot=self._job.slot, **fields)

    def _wait(self, replica: Replica, over: Callable[[], bool]) -> list[BoundaryWork]:
        """Carry out commands until `over`: before the first step, and in lock-step modes."""
        works = []
        while not over():
            self._termination.check()
            replica.wait(POLL_SECONDS)
            if work := replica.apply_commands():
                replica.report(self._boundary(work), work, wait=True)
                works.append(work)
        return works

    def _done(self, replica: Replica, works: Sequence[BoundaryWork]) -> Step:
        assigned = {key: None for work in works for key in work.assigned}
        names = replica.state.names(BoundaryWork(assigned=assigned))
        self._termination.over = replica.state.finished and not self._job.alone
        for function in self._on_adopt if names else ():
            function(names)
        return Step(adopted=names, tick=replica.state.tick, finished=replica.state.finished)

    def _move_schedules(self) -> None:
        if self._schedules.items:
            self._schedules.move_to(self.tick, self.progress)

    def _length(self) -> JobLength:
        run_file = self._job.run_file
        heard = self._replica.state.length if self._replica else None
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
                if self._replica is not None and self._open and holds_process(self):
                    self._open = False
                    try:
                        self._say("leaving", reason=reason)
                        self._send_logged(self._replica)
                    finally:  # nobody may read the output any more
                        self._replica.leave(reason)
            finally:
                release_process(self)
                atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Report the end of a process whose script has not closed."""
        error = uncaught()
        terminated = TERMINATED if self._termination.requested else "the process has ended"
        self._leave(reason_of(error) if error else terminated)
