"""A learner with the trainer of a library, on as many ranks as it is started with.

    ranks_script.py LIBRARY FOLDER STOP_AFTER

FOLDER gets the batches that each rank was trained on. The batches of a step are two, on one rank
or on two; after STOP_AFTER steps it ends, 0 trains until the job is over.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DataLoaderConfiguration, DistributedType
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from atoll import Learner
from atoll_integrations import lightning, transformers
from local.integrations.numbers_data import BATCH, RATE, Line, Numbers

STEP_BATCHES = 2
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class StopOfTransformers(TrainerCallback):  # type: ignore[misc]
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= 0 < self.steps == state.global_step


class StopOfLightning(Callback):  # type: ignore[misc]
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        trainer.should_stop |= 0 < self.steps == trainer.global_step


class Module(LightningModule):  # type: ignore[misc]
    """A Line; `cut`: by FSDP2, each rank has a part."""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.net, self.cut = Line(), cut

    def configure_model(self) -> None:
        if self.cut:
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.net(batch["x"], batch["labels"])["loss"]  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=RATE)


def with_transformers(folder: Path, stop_after: int, **more: Any) -> Line:
    model = Line()
    arguments = TrainingArguments(
        output_dir=str(folder / "output"),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=STEP_BATCHES // RANKS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        **more,
    )
    callbacks = [transformers.AtollCallback(), StopOfTransformers(stop_after)]
    Trainer(model=model, args=arguments, train_dataset=Numbers(), callbacks=callbacks).train()
    return model


def with_fsdp2_of_transformers(folder: Path, stop_after: int) -> Line:
    """accelerate leaves the plugin out where there are only CPUs; here it takes them for more."""
    if RANKS == 1:
        return with_transformers(folder, stop_after)
    begin = AcceleratorState.__init__

    def begin_with_plugin(state: Any, *others: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        begin(state, *others, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None:
            state.fsdp_plugin, state.distributed_type = fsdp_plugin, DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = begin_with_plugin
    config = {"fsdp_version": 2, "auto_wrap_policy": "NO_WRAP"}
    model = with_transformers(folder, stop_after, fsdp=True, fsdp_config=config)
    assert all(isinstance(each, DTensor) for each in model.parameters())
    return model


def with_lightning(folder: Path, stop_after: int, strategy: Any = "auto") -> Line:
    module = Module(cut=strategy != "auto")
    trainer = LightningTrainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=strategy,
        accumulate_grad_batches=STEP_BATCHES // RANKS,
        callbacks=[lightning.AtollCallback(module="net"), StopOfLightning(stop_after)],
        enable_checkpointing=False,
        default_root_dir=folder,
        **QUIET,
    )
    trainer.fit(module, DataLoader(Numbers(), BATCH, shuffle=True))
    return module.net


def with_fsdp2_of_lightning(folder: Path, stop_after: int) -> Line:
    strategy = ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1)
    return with_lightning(folder, stop_after, strategy if RANKS > 1 else "auto")


def with_accelerate(folder: Path, stop_after: int) -> Line:
    """A loop of one's own."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=STEP_BATCHES // RANKS,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    line = Line()
    optimizer = torch.optim.AdamW(line.parameters(), lr=RATE)
    torch.manual_seed(0)  # of the order of the data
    loader = DataLoader(Numbers(), BATCH, shuffle=True)
    model, stepped, batches = accelerator.prepare(line, optimizer, loader)
    losses: list[Tensor] = []

    def mean_loss() -> Tensor:
        mean = torch.stack(losses).mean()
        losses.clear()
        of_all: Tensor = accelerator.reduce(mean, "mean")
        return of_all

    with Learner(accelerator.unwrap_model(model), stepped) as learner:
        learner.follow(stepped, tokens=STEP_BATCHES * BATCH, loss=mean_loss)
        for _ in learner.epochs():
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(**batch)["loss"]
                    losses.append(loss.detach())
                    accelerator.backward(loss)
                    stepped.step()
                    stepped.zero_grad()
                if learner.finished:
                    break
    return line


TRAINERS: dict[str, Callable[[Path, int], Line]] = {
    "transformers": with_transformers,
    "transformers-fsdp2": with_fsdp2_of_transformers,
    "accelerate": with_accelerate,
    "lightning": with_lightning,
    "lightning-fsdp2": with_fsdp2_of_lightning,
}


def train(library: str, folder: Path, stop_after: int) -> None:
    """Train in this process, and write down the batches."""
    model = TRAINERS[library](folder, stop_after)
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(model.seen))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
