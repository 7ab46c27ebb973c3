"""`AtollCallback`: a Lightning `Trainer` becomes one learner of a job.

setup()                  the trainer's limits
configure_optimizers()   sees a trainer that will train as long as the job: `max_steps`,
                         `max_epochs` and `estimated_stepping_batches` say so
on_fit_start()           the model is on its device, no batch was read yet: join the job. The
                         trainer's own limits are gone, and it gets its schedules wrapped
on_train_start()         the data's iterator is made again, from the slot's place. How many
                         steps an epoch has is known now
on_train_batch_end()     if an optimizer has stepped in this batch, the step boundary: before
                         validation, and before a checkpoint is saved
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

import atoll
from atoll_integrations.trainers import (
    NO_EARLY_STOP,
    EveryTicks,
    NotStepped,
    OptimizerSteps,
    Ranks,
    check_all,
    refuse,
    slot_seed,
    tokens_in,
)

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import EarlyStopping
except ImportError:
    try:
        from pytorch_lightning import Callback
        from pytorch_lightning.callbacks import EarlyStopping
    except ImportError as error:
        remedy = "in a clone of Atoll: pip install -e '.[local,lightning]'"
        raise ImportError(f"{error}; install it {remedy}") from error

STRATEGIES: Final = ("DDPStrategy", "ModelParallelStrategy")  # of several processes


class AtollCallback(Callback):  # type: ignore[misc]
    """Give it to a trainer: `Trainer(callbacks=[AtollCallback()])`.

    `tokens_per_step`: tokens that one optimizer step trains, all accumulated batches together; by
    default they are counted (`tokens_in`). `module`: the attribute of the LightningModule that
    holds the model: the names of the exported tensors then begin without it. `loss`: the name under
    which the module logs the learner's loss; by default it is what `training_step` returns, else
    (manual optimization) the mean of what is logged with "loss" in its name.

    What it changes in the trainer is in docs/integrations.md. `learner` is None outside of `fit()`.
    """

    def __init__(
        self, tokens_per_step: int | None = None, module: str = "", loss: str = ""
    ) -> None:
        super().__init__()
        self.loss = loss
        self.tokens_per_step = tokens_per_step
        self.module = module
        self.learner: atoll.Learner | None = None
        self._job: Any = None
        self._steps: OptimizerSteps | None = None
        self._ranks = Ranks()
        self._tokens = 0  # of this rank's batches since the last boundary
        self._losses: list[Tensor] = []  # theirs
        self._batches = 0  # of all ranks of this slot, trained since the job began
        self._first_epoch = 0  # of the data, when this process began

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self._job = atoll.job()
        kept = [each for each in trainer.callbacks if not isinstance(each, EarlyStopping)]
        if len(kept) < len(trainer.callbacks):
            warnings.warn(NO_EARLY_STOP.format("EarlyStopping"), stacklevel=2)
            trainer.callbacks = kept
        loop = trainer.fit_loop
        if self._job.steps is not None:
            loop.epoch_loop.max_steps = self._job.steps
            configure = pl_module.configure_optimizers
            pl_module.configure_optimizers = partial(self._configure, trainer, configure)
        loop.min_epochs = loop.epoch_loop.min_steps = None  # the end of the job is the end
        if not self._job.first:
            for callback in trainer.checkpoint_callbacks:
                callback.save_top_k, callback.save_last = 0, False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        check_parallel(trainer)
        trainer.fit_loop.max_epochs = trainer.fit_loop.epoch_loop.max_steps = -1
        pl_module.__dict__.pop("configure_optimizers", None)
        model = self._model(pl_module)
        self._steps = OptimizerSteps(trainer.optimizers)
        if pl_module.automatic_optimization:
            for config in trainer.lr_scheduler_configs:
                config.scheduler = NotStepped(config.scheduler)
        self.learner = atoll.Learner(model, trainer.optimizers)
        self.learner.open()
        self._ranks = Ranks()
        self._batches = self.learner.cursor
        if self.learner.finished:
            trainer.should_stop = True

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Go to the slot's place in the data, and let the schedules follow the tick."""
        assert self.learner is not None
        begin_an_epoch(trainer.fit_loop)
        self._continue_data(trainer)
        for config in trainer.lr_scheduler_configs if pl_module.automatic_optimization else ():
            config.scheduler.restore_rates()
            scheduler = config.scheduler.scheduler
            period = config.frequency * self._ticks_of(config.interval, trainer)
            self.learner.schedule(scheduler if period == 1 else EveryTicks(scheduler, period))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Draw the epoch's order again, as a function of slot and epoch."""
        epoch = self._first_epoch + trainer.current_epoch
        if trainer.current_epoch:
            self._begin_epoch(trainer, epoch)
        else:  # its iterator is there
            self._draw_orders(trainer, epoch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make the step boundary, if an optimizer has stepped."""
        assert self.learner is not None
        assert self._steps is not None
        self._batches += self._ranks.size
        self._tokens += tokens_in(batch)
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        logged = trainer._results.metrics(on_step=True)["callback"]
        if not self.loss and isinstance(loss, Tensor) and loss.numel() == 1:
            divided = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._losses.append(loss.detach() * divided)
        elif (loss := loss_of(logged, self.loss)) is not None:
            self._losses.append(loss)
        if self._steps.taken:
            if self.loss and self.loss not in logged:
                names = ", ".join(logged) or "nothing"
                problem = f"training_step does not log {self.loss!r} at each step; it logs {names}"
                raise atoll.SpecError("loss", problem, "give the name that it logs")
            loss = torch.stack(self._losses).mean() if self._losses else None
            tokens, loss = self._ranks.together(self._tokens, loss, pl_module.device)
            self.learner.step(
                tokens=self.tokens_per_step or tokens, loss=loss, cursor=self._batches
            )
            self._steps.clear()
            self._tokens, self._losses = 0, []
        if self.learner.finished:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def _configure(self, trainer: Any, configure: Callable[[], Any]) -> Any:
        """`configure_optimizers` with the job's length, now that the data are there."""
        if trainer.train_dataloader is None:
            trainer.fit_loop.setup_data()
        steps = steps_of_an_epoch(trainer)
        trainer.fit_loop.max_epochs = -1 if steps is None else math.ceil(self._job.steps / steps)
        return configure()

    def _ticks_of(self, interval: str, trainer: Any) -> int:
        """How many ticks a schedule counts as one: in an epoch, the steps of this learner."""
        if interval == "step":
            return 1
        steps = steps_of_an_epoch(trainer)
        if steps is None:
            problem = "counts epochs, and the training data have no length"
            raise atoll.SpecError("lr_scheduler", problem, 'give it with "interval": "step"')
        return steps

    def _model(self, pl_module: Any) -> Any:
        """Return what is exchanged: the LightningModule, or a module of it with all that trains."""
        if not self.module:
            return pl_module
        model = pl_module.get_submodule(self.module)
        inside = {id(each) for each in model.parameters()}
        for name, parameter in pl_module.named_parameters():
            if parameter.requires_grad and id(parameter) not in inside:
                raise atoll.SpecError(
                    "module", f"{self.module!r} does not hold {name}", "leave the argument out"
                )
        return model

    def _close(self, error: BaseException | None = None) -> None:
        learner, self.learner = self.learner, None
        if self._steps is not None:
            self._steps.close()
        if learner is not None:
            learner.close(error)

    def _begin_epoch(self, trainer: Any, epoch: int) -> None:
        """Make the next iterator give the slot's order in this epoch of the data."""
        torch.manual_seed(slot_seed(self._job.seed, self._job.slot, epoch))
        self._draw_orders(trainer, epoch)

    def _draw_orders(self, trainer: Any, epoch: int) -> None:
        seed = slot_seed(self._job.seed, self._job.slot, epoch)
        for loader in trainer.fit_loop._combined_loader.flattened:
            for part in ("sampler", "batch_sampler"):
                draw_order(getattr(loader, part, None), seed, epoch)

    def _continue_data(self, trainer: Any) -> None:
        """Make the trainer's iterator over the data again, from the slot's place on."""
        fetcher = trainer.fit_loop._data_fetcher
        batches = trainer.num_training_batches
        self._first_epoch, skip = 0, self._batches // self._ranks.size
        if math.isfinite(batches):
            self._first_epoch, skip = divmod(skip, batches)
        self._begin_epoch(trainer, self._first_epoch)
        loaders = trainer.fit_loop._combined_loader.flattened
        if len(loaders) == 1 and jumps(loaders[0]):
            jump(loaders[0], fetcher, skip)
            return
        iter(fetcher)
        while skip:
            try:
                next(fetcher)
            except StopIteration:  # data without a length: the next time through
                self._first_epoch += 1
                self._begin_epoch(trainer, self._first_epoch)
                iter(fetcher)
            else:
                skip -= 1


def loss_of(logged: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return what is logged under this name, else the mean of all with "loss" in theirs, or None.

    What is logged for steps and epochs has two names, the second with "_step".
    """
    names = [name] if name else [key for key in logged if "loss" in key.lower()]
    values = [
        logged[each].detach()
        for each in names
        if each in logged and (name or each.removesuffix("_step") not in set(names) - {each})
    ]
    return torch.stack(values).mean() if values else None


def check_parallel(trainer: Any) -> None:
    """Raise SpecError unless the strategy gives every rank batches of its own."""
    remedy = "give it devices= and num_nodes=, as many as there are processes"
    check_all("AtollCallback", trainer.world_size, remedy)
    if trainer.world_size == 1:
        return
    works = "DDPStrategy, or FSDP2 by ModelParallelStrategy(tensor_parallel_size=1)"
    name = type(trainer.strategy).__name__
    if name not in STRATEGIES:
        refuse("AtollCallback", name, works)
    if (shares := trainer.distributed_sampler_kwargs["num_replicas"]) != trainer.world_size:
        refuse("AtollCallback", f"{shares} batches for {trainer.world_size} ranks", works)


def draw_order(sampler: Any, seed: int, epoch: int) -> None:
    """Let an order that is drawn at random be that of the slot, whatever the number of ranks."""
    if isinstance(sampler, DistributedSampler):
        sampler.seed, sampler.epoch = seed, 0
    elif isinstance(sampler, RandomSampler):
        if sampler.generator is None:
            sampler.generator = torch.Generator()
        sampler.generator.manual_seed(seed)
    elif hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def begin_an_epoch(loop: Any) -> None:
    """Forget in which epoch, and where in it, a checkpoint was; the count of steps is kept."""
    loop.restarting = False
    for part in (loop, loop.epoch_loop):
        if hasattr(part, "reset_restart_stage"):  # since Lightning 2.5.1
            part.reset_restart_stage()
    loop.epoch_progress.current.reset()


def steps_of_an_epoch(trainer: Any) -> int | None:
    """Of this learner; None if the training data have no length."""
    batches = trainer.num_training_batches
    return math.ceil(batches / trainer.accumulate_grad_batches) if math.isfinite(batches) else None


def jumps(loader: Any) -> bool:
    """Whether batches can be left out without reading them."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )


def jump(loader: Any, fetcher: Any, skip: int) -> None:
    """Begin an iteration over `loader` with the batch after `skip` others."""
    sampler = loader.batch_sampler
    loader.__dict__["batch_sampler"] = After(sampler, skip)  # DataLoader guards the attribute
    try:
        iter(fetcher)
    finally:
        loader.__dict__["batch_sampler"] = sampler
    fetcher.fetched += skip


class After:
    """A batch sampler without its first `skip` batches, but as long as before."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self.sampler = sampler
        self.skip = skip

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self.skip, None)
