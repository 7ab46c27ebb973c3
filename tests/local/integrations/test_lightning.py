"""Lightning's Trainer in this process, alone or as the learner of a real shard."""

import importlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader

from atoll import Learner, SpecError
from atoll_integrations import lightning
from atoll_integrations.lightning import AtollCallback, check_parallel
from local.integrations.conftest import Alone
from local.integrations.numbers_data import (
    BATCH,
    RATE,
    SAMPLES,
    Line,
    Numbers,
    Stream,
    check_two_starts,
    continues,
    steps_beyond,
)
from local.one_shard import SLOT, OneShard, one_shard

pytestmark = pytest.mark.filterwarnings("default")  # the libraries warn of their own parts
ACCUMULATE, STEPS, STOP_AFTER = 4, 36, 16  # ten batches an epoch: steps of 4, 4 and 2
STEP_SECONDS = 0.02  # what a step takes at least: merges happen meanwhile


class Module(pl.LightningModule):  # type: ignore[misc]
    """A Line with a schedule that falls to 0 in as many steps as the trainer will make."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Line()
        self.cursor = -1
        self.rates: list[tuple[int, float]] = []  # tick, learning rate
        self.validations = 0

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.net(batch["x"], batch["labels"])["loss"]  # type: ignore[no-any-return]

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self(batch)  # type: ignore[no-any-return]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.validations += 1
        self.log("val_loss", self(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        total = self.trainer.estimated_stepping_batches
        schedule = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        learner = callback_of(self.trainer).learner
        assert learner is not None
        time.sleep(STEP_SECONDS)
        self.rates.append((learner.tick, optimizer.param_groups[0]["lr"]))

    def on_train_start(self) -> None:
        learner = callback_of(self.trainer).learner
        assert learner is not None
        self.cursor = learner.cursor


class Stop(pl.Callback):  # type: ignore[misc]
    """Fails after so many batches, or ends the training once the shard has merged some of it."""

    def __init__(
        self, batches: int, shard: OneShard | None = None, error: Exception | None = None
    ) -> None:
        self.batches, self.shard, self.error = batches, shard, error

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        if len(pl_module.net.seen) >= self.batches:
            if self.error:
                raise self.error
            trainer.should_stop = self.shard is None or self.shard.has_merged()


def callback_of(trainer: Any) -> AtollCallback:
    return next(each for each in trainer.callbacks if isinstance(each, AtollCallback))


def fit(
    module: Any,
    folder: Path,
    *more: Any,
    data: Any = None,
    library: Any = pl,
    checkpoint: Path | None = None,
    shuffle: bool | None = None,
    loss: str = "",
    **arguments: Any,
) -> Any:
    defaults = {
        "accelerator": "cpu",
        "max_epochs": 1,  # the job's length is another
        "accumulate_grad_batches": ACCUMULATE,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = library.Trainer(
        default_root_dir=folder,
        callbacks=[*more, AtollCallback(loss=loss)],
        **{**defaults, **arguments},
    )
    loader = DataLoader(Numbers() if data is None else data, BATCH, shuffle=data is None or shuffle)
    trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=False)
    return trainer


def test_a_module_that_is_started_again_goes_on_with_its_next_batch(
    tmp_path: Path, alone: Alone
) -> None:
    with one_shard(tmp_path, steps=STEPS) as shard:
        first, second, data = Module(), Module(), Numbers()
        fit(first, tmp_path, Stop(STOP_AFTER * ACCUMULATE, shard))
        fit(second, tmp_path, data=data, shuffle=True)
    alone(steps_beyond(len(first.net.seen), second.cursor + len(second.net.seen)))
    whole = Module()
    fit(whole, tmp_path)
    assert data.read == [number for batch in second.net.seen for number in batch]
    seen = (whole.net.seen, first.net.seen, second.net.seen)
    check_two_starts(*seen, second.cursor, second.rates, STEPS)
    assert {line["tokens"] for line in shard.steps} == {ACCUMULATE * BATCH, 2 * BATCH}
    losses = [line["loss"] for line in shard.steps[:3]]
    assert losses == pytest.approx(first.net.losses_of_steps(ACCUMULATE, ACCUMULATE, 2))
    assert shard.commits


def test_a_stream_without_a_length_is_read_on_from_its_place(tmp_path: Path) -> None:
    with one_shard(tmp_path, steps=STEPS) as shard:
        first, second = Module(), Module()
        fit(first, tmp_path, Stop(STOP_AFTER * ACCUMULATE, shard), data=Stream())
        fit(second, tmp_path, data=Stream())
    whole = 1000 * [tuple(range(start, start + BATCH)) for start in range(0, SAMPLES, BATCH)]
    assert continues(first.net.seen, 0, whole)
    assert 0 < second.cursor <= len(first.net.seen)
    assert continues(second.net.seen, second.cursor, whole)


def test_an_exception_in_a_module_leaves_the_job_with_its_reason(tmp_path: Path) -> None:
    with one_shard(tmp_path, steps=4) as shard:
        with pytest.raises(ValueError, match="boom"):
            fit(Module(), tmp_path, Stop(2, error=ValueError("boom in batch 2")))
        fit(Module(), tmp_path)  # another Learner may be opened
    assert "boom in batch 2" in (shard.folder / "learners" / f"{SLOT}.jsonl").read_text()


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_it_stops_with_the_job_validates_and_saves_under_both_names_of_the_library(
    name: str, tmp_path: Path, alone: Alone
) -> None:
    alone(10)
    library: Any = importlib.import_module(name)
    validations: list[int] = []

    class Measured(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Line()

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return self.net(batch["x"], batch["labels"])["loss"]  # type: ignore[no-any-return]

        def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
            validations.append(batch_idx)

        def val_dataloader(self) -> Any:
            return DataLoader(Numbers(), SAMPLES)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

    module = Measured()
    trainer = fit(module, tmp_path, library=library, enable_checkpointing=True)
    assert trainer.global_step == 10  # of 3 in an epoch
    assert len(module.net.seen) == 34
    assert len(validations) == 5  # the check at the start, three epochs, the end
    assert len(list(tmp_path.rglob("*.ckpt"))) == 1


def test_a_slot_that_is_not_the_first_saves_no_checkpoints(
    tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(4)
    monkeypatch.setattr("atoll_worker.job.Job.slots", ("another-0", "alone-0"))
    saver = ModelCheckpoint(save_top_k=-1, save_last=True, every_n_train_steps=1)
    fit(Module(), tmp_path, saver, enable_checkpointing=True)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("every", [{"every_n_epochs": 1}, {"every_n_train_steps": 5}])
def test_a_checkpoint_gives_neither_rates_nor_an_end_nor_a_place_in_the_data(
    every: dict[str, int], tmp_path: Path, alone: Alone
) -> None:
    alone(8)
    first, module = Module(), Module()
    saver = ModelCheckpoint(dirpath=tmp_path, save_last=True, save_top_k=-1, **every)
    fit(first, tmp_path, saver, enable_checkpointing=True)
    fit(module, tmp_path, checkpoint=tmp_path / "last.ckpt")
    assert module.cursor == 0
    assert module.net.seen == first.net.seen
    assert [tick for tick, _ in module.rates] == list(range(8))
    assert [rate for _, rate in module.rates] == pytest.approx(
        [RATE * (1 - n / 8) for n in range(8)]
    )


class ByHand(Module):
    """Two optimizers that step in every second batch, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:  # type: ignore[override]
        loss = self(batch)
        self.log("g_loss", 2.0, on_step=True, on_epoch=True)
        self.log("d_Loss", 4.0)
        self.log("accuracy", 9.0)
        self.manual_backward(loss)
        if batch_idx % 2:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
            self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        optimizers = [torch.optim.SGD([each], lr=1.0) for each in self.parameters()]
        return optimizers, [LambdaLR(optimizers[0], lambda step: 0.5**step)]


def test_optimizers_that_step_by_hand_make_one_step_and_early_stopping_is_left_out(
    tmp_path: Path, alone: Alone
) -> None:
    alone(7)
    module = ByHand()  # the loss that it logs is below that, at the end of the first epoch, too
    stop = EarlyStopping("g_loss", stopping_threshold=1e9, check_on_train_epoch_end=True)
    with pytest.warns(UserWarning, match="EarlyStopping is left out"):
        fit(module, tmp_path, stop, accumulate_grad_batches=1)
    assert len(module.net.seen) == 2 * 7
    first = [rate for _, rate in module.rates[::2]]
    assert first == [0.5**step for step in range(7)]  # the module's own doing


@pytest.mark.parametrize(("name", "loss"), [("", 3.0), ("g_loss", 2.0)])
def test_a_loss_that_is_only_logged_is_the_learners(
    tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch, name: str, loss: float
) -> None:
    alone(2)
    given: list[float] = []

    def step(learner: Learner, **values: Any) -> None:
        given.append(float(values["loss"]))
        taken(learner, **values)

    taken = Learner.step
    monkeypatch.setattr(Learner, "step", step)
    fit(ByHand(), tmp_path, accumulate_grad_batches=1, loss=name)
    assert given == [loss, loss]


def test_a_loss_that_is_never_logged_is_refused_with_the_names_that_are(
    tmp_path: Path, alone: Alone
) -> None:
    alone(2)
    with pytest.raises(SpecError, match=r"'lose' at each step; it logs .*d_Loss"):
        fit(ByHand(), tmp_path, accumulate_grad_batches=1, loss="lose")


def test_a_schedule_of_the_trainers_steps_ends_with_the_job(
    tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def configure(module: Module) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        cycle = OneCycleLR(optimizer, 1.0, module.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]

    monkeypatch.setattr(Module, "configure_optimizers", configure)
    alone(9)
    module = Module()
    fit(module, tmp_path, max_epochs=1000)
    assert [tick for tick, _ in module.rates] == [*range(9)]
    assert "configure_optimizers" not in vars(module)


def test_the_model_inside_a_module_can_be_what_is_exchanged(tmp_path: Path, alone: Alone) -> None:
    alone(3)
    module = Module()
    models: list[Any] = []

    class Look(pl.Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            models.append(callback_of(trainer).learner.model)  # type: ignore[union-attr]

    callback = AtollCallback(module="net")
    trainer = pl.Trainer(
        accelerator="cpu", callbacks=[callback, Look()], logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Numbers(), BATCH))
    assert models == [module.net]

    module.head = torch.nn.Linear(1, 1)
    with pytest.raises(SpecError, match=r"does not hold head\.weight"):
        callback.on_fit_start(trainer, module)


def test_a_strategy_whose_ranks_do_not_divide_the_data_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lightning, "check_all", lambda *_: None)

    def check(name: str, shares: int) -> None:
        strategy, kwargs = type(name, (), {})(), {"num_replicas": shares}
        check_parallel(
            SimpleNamespace(world_size=2, strategy=strategy, distributed_sampler_kwargs=kwargs)
        )

    check("DDPStrategy", 2)
    with pytest.raises(SpecError, match="does not train with DeepSpeedStrategy; use DDPStrategy"):
        check("DeepSpeedStrategy", 2)
    with pytest.raises(SpecError, match="does not train with 1 batches for 2 ranks; use DDP"):
        check("ModelParallelStrategy", 1)
