"""`AtollCallback`: a `transformers.Trainer` becomes one learner of a job.

A callback can end a Trainer's loop but not prolong it, is not told the loss, and sees the batches
too late to skip any. So it puts itself around five methods of the Trainer that is being made, which
are documented as methods to override:

    set_initial_training_values   the loop has no last epoch; the length that the schedule and the
                                  progress bar know is the job's
    create_scheduler              the Trainer gets its scheduler wrapped: the learner moves it
    get_train_dataloader          the batches go on where the slot was (`Continued`)
    training_step                 counts tokens and keeps the loss
    train                         leaves the job when an exception ends it; without early stopping

The Learner is opened in `on_train_begin`, where the model is on its device, and `on_step_end` is
the step boundary: before the Trainer logs, evaluates and saves.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

import atoll
from atoll_integrations.trainers import (
    NO_EARLY_STOP,
    NotStepped,
    OptimizerSteps,
    Ranks,
    check_all,
    refuse,
    slot_seed,
    tokens_in,
)

try:
    from accelerate import skip_first_batches
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
except ImportError as error:
    remedy = "in a clone of Atoll: pip install -e '.[local,transformers]'"
    raise ImportError(f"{error}; install it {remedy}") from error

OTHER_KINDS: Final = ("DEEPSPEED", "MEGATRON_LM", "XLA")  # accelerate's names


class AtollCallback(TrainerCallback):  # type: ignore[misc]
    """Give it to a Trainer when that is made: `Trainer(..., callbacks=[AtollCallback()])`.

    `tokens_per_step`: tokens that one optimizer step trains, all accumulated batches together; by
    default they are counted (`tokens_in`). What it changes in the Trainer is in
    docs/integrations.md. `learner` is None outside of `train()`.
    """

    def __init__(self, tokens_per_step: int | None = None) -> None:
        self.tokens_per_step = tokens_per_step
        self.learner: atoll.Learner | None = None
        self._trainer: Any = None
        self._steps: OptimizerSteps | None = None
        self._ranks = Ranks()
        self._length = 0  # in steps, as the Trainer and its schedule know it
        self._tokens = 0  # of this rank's batches since the last step
        self._loss: torch.Tensor | float = 0.0  # their sum: the Trainer divides each by their count
        self._batches = 0  # of all ranks of this slot, trained since the job began

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        job = atoll.job()
        trainer = self._trainer = trainer_that_calls()
        check_parallel(trainer.accelerator)
        args.max_steps = job.steps or args.max_steps
        args.ignore_data_skip = True  # the place in the data comes from the job, not a checkpoint
        if args.data_seed is not None:
            args.data_seed = slot_seed(args.data_seed, job.slot)
            trainer.accelerator.dataloader_config.data_seed = args.data_seed
        args.load_best_model_at_end = False  # all slots end with the job's final values
        if not job.first:
            args.output_dir = os.path.join(args.output_dir, job.slot)
            args.save_strategy = type(args.save_strategy)("no")
            args.push_to_hub = False
        seed = partial(slot_seed, args.seed, job.slot)
        trainer.train = partial(self._train, trainer.train)
        trainer.training_step = partial(self._training_step, trainer.training_step)
        trainer.get_train_dataloader = partial(self._loader, trainer.get_train_dataloader, seed)
        trainer.create_scheduler = partial(self._scheduler, trainer.create_scheduler)
        trainer.set_initial_training_values = partial(
            self._training_values, trainer.set_initial_training_values
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer is None:
            problem = "AtollCallback was added to a Trainer that was made without it"
            remedy = "give it when the Trainer is made: Trainer(..., callbacks=[AtollCallback()])"
            raise atoll.SpecError("callbacks", problem, remedy)
        if self.learner is None:  # it is open already if a smaller batch size is tried
            model, optimizer = self._trainer.model, kwargs["optimizer"]
            self.learner = atoll.Learner(model, optimizer)
            self.learner.open()
            self._ranks = Ranks()
            if self._trainer.lr_scheduler is not None:
                self._trainer.lr_scheduler.restore_rates()
                self.learner.schedule(self._trainer.lr_scheduler.scheduler)
        if self._steps is not None:
            self._steps.close()
        self._steps = OptimizerSteps([kwargs["optimizer"]])
        self._tokens, self._loss, self._batches = 0, 0.0, self.learner.cursor
        self._length = state.max_steps
        self._keep_going(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the step boundary; at the job's end, evaluate and save as at any last step."""
        assert self.learner is not None
        assert self._steps is not None
        if self._steps.taken:
            tokens, loss = self._ranks.together(self._tokens, self._loss, args.device)
            self.learner.step(
                tokens=self.tokens_per_step or tokens, loss=loss, cursor=self._batches
            )
        self._steps.clear()
        self._tokens, self._loss = 0, 0.0
        self._keep_going(state)
        if self.learner.finished:
            state.max_steps = self._length
            control.should_training_stop = True
            control.should_evaluate |= args.eval_strategy == "steps"
            control.should_save |= args.save_strategy == "steps"

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close()

    def _keep_going(self, state: Any) -> None:
        state.max_steps = max(self._length, state.global_step + 2)

    def _close(self, error: BaseException | None = None) -> None:
        learner, self.learner = self.learner, None
        if self._steps is not None:
            self._steps.close()
        if learner is not None:
            learner.close(error)

    def _train(self, train: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """`Trainer.train`: an exception leaves the job, and tells it why. No early stopping."""
        while self._trainer.pop_callback(EarlyStoppingCallback) is not None:
            warnings.warn(NO_EARLY_STOP.format("EarlyStoppingCallback"), stacklevel=2)
        try:
            return train(*arguments, **keywords)
        except BaseException as error:
            self._close(error)
            raise

    def _training_step(
        self, step: Callable[..., Any], model: Any, inputs: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        name = getattr(self._trainer.model, "main_input_name", "input_ids")
        self._tokens += tokens_in(inputs, name)
        self._batches += self._ranks.size
        loss = step(model, inputs, *arguments, **keywords)
        self._loss = self._loss + loss
        return loss

    def _loader(self, make: Callable[[], Any], seed: Callable[..., int]) -> "Continued":
        """Return the slot's own order, from the slot's own place."""
        torch.manual_seed(seed())  # accelerate takes the seed of the order from here
        return Continued(make(), seed=seed, place=self._place, batches=self._batches_of_an_epoch)

    def _place(self) -> int | None:
        assert self.learner is not None
        return None if self.learner.finished else self.learner.cursor // self._ranks.size

    def _batches_of_an_epoch(self) -> int:
        """How many batches the Trainer calls an epoch where the data has no length."""
        args = self._trainer.args
        return int(args.max_steps * args.gradient_accumulation_steps)

    def _scheduler(self, create: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        scheduler = create(*arguments, **keywords)
        if not isinstance(scheduler, NotStepped):
            scheduler = self._trainer.lr_scheduler = NotStepped(scheduler)
        return scheduler

    def _training_values(self, values: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return sampler states, the first of which is the number of epochs."""
        _, *others = values(*arguments, **keywords)
        return (sys.maxsize, *others)


class Continued:
    """A rank's data loader whose first batch is at the slot's place, and which never ends.

    The batches are one stream through all epochs; an iteration gives as many as one of `loader`, or
    `batches()` if that has no length, so that the Trainer counts epochs as it does alone.
    `place()`: how many of the stream were trained before; None if there are none to train.
    """

    def __init__(
        self,
        loader: Any,
        *,
        seed: Callable[..., int],
        place: Callable[[], int | None],
        batches: Callable[[], int],
    ) -> None:
        self.loader = loader
        self._seed = seed
        self._place = place
        self._batches = batches
        self._stream: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self.loader) if self._has_length() else self._batches()

    def __iter__(self) -> Iterator[Any]:
        if self._stream is None:
            place = self._place()
            self._stream = iter(()) if place is None else self._from(place)
        return islice(self._stream, len(self))

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # asked for before it is set, by pickle and copy
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Take the Trainer's count of epochs; that of the data is kept here."""

    def _from(self, place: int) -> Iterator[Any]:
        """All batches from the one at `place`, through the ends of epochs."""
        epoch, skip = divmod(place, len(self.loader)) if self._has_length() else (0, place)
        while True:
            torch.manual_seed(self._seed(epoch))  # an order that is drawn again is the same
            if hasattr(self.loader, "set_epoch"):
                self.loader.set_epoch(epoch)
            jump = skip if self._can_jump() else 0
            skip -= jump
            read = 0
            for batch in skip_first_batches(self.loader, jump) if jump else self.loader:
                read += 1
                if skip:
                    skip -= 1
                else:
                    yield batch
            if not read:
                return  # no data: the Trainer says so
            epoch += 1

    def _can_jump(self) -> bool:
        """Whether `skip_first_batches` leaves batches out unread: not in stateful loaders.

        accelerate's own loaders all have a `state_dict`, so they are asked in another way.
        """
        stateful = hasattr(self.loader, "state_dict")
        stateful = getattr(self.loader, "use_stateful_dataloader", stateful)
        return isinstance(self.loader, DataLoader) and self._has_length() and not stateful

    def _has_length(self) -> bool:
        try:
            return len(self.loader) > 0
        except TypeError:
            return False


def check_parallel(accelerator: Any) -> None:
    """Raise SpecError unless every rank has batches of its own, and its values in torch alone."""
    remedy = "without GPUs give TrainingArguments(use_cpu=True)"
    check_all("AtollCallback", accelerator.num_processes, remedy)
    kind = accelerator.distributed_type.value
    config = getattr(accelerator, "parallelism_config", None)
    sizes = {each: getattr(config, f"{each}_size", 1) for each in ("tp", "cp", "sp")}
    kinds = [kind] if kind in OTHER_KINDS else []
    for each in (*kinds, *(f"{name}_size={size}" for name, size in sizes.items() if size > 1)):
        refuse("AtollCallback", each, "DistributedDataParallel or FSDP2 (fsdp_version: 2)")


def trainer_that_calls() -> Any:
    """Return the Trainer whose `__init__` runs: a callback is passed all else but that."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    raise RuntimeError("on_init_end is called by a transformers.Trainer alone")
