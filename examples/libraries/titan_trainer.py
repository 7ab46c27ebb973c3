"""torchtitan's Trainer as a learner: its own loop, checkpoints and schedules, joined to a job.

Copy it beside your configurations, and give each of them to `learner`, as titan_llama.py does.
Nothing in torchtitan (0.3) is patched: these are methods which its loop calls.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from datasets.distributed import split_dataset_by_node
from torchtitan.distributed.utils import dist_sum_tensor
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.tools.utils import device_module
from torchtitan.trainer import Trainer

import atoll


def learner(config: Trainer.Config) -> "LearnerTrainer.Config":
    """The same configuration, for a learner."""
    known = {each.name: getattr(config, each.name) for each in fields(config)}
    return LearnerTrainer.Config(**known)


class LearnerTrainer(Trainer):  # type: ignore[misc]
    """One learner of a job, on all ranks that torchtitan trains with."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):  # type: ignore[misc]
        """That of torchtitan. `training.steps` and `debug.seed` are the job's."""

    def __init__(self, config: Config) -> None:
        job = atoll.job()
        config.training.steps = job.steps or config.training.steps  # the length of the schedule
        config.debug.seed = job.seed
        config.dump_folder = f"{config.dump_folder}/{job.slot}"
        config.checkpoint.exclude_from_loading += ["lr_scheduler"]  # the job knows where it is
        for source in getattr(config.dataloader, "sources", [config.dataloader]):
            DATASETS[source.dataset] = share(source.dataset, job)
        super().__init__(config)
        self.step: int
        self.learner = atoll.Learner(self.model_parts, list(self.optimizers))

    def train(self) -> None:
        """Join the job after a checkpoint was loaded, since its values go before those of it."""
        begin = self.dataloader.state_dict() if self.config.checkpoint.enable else {}
        self.checkpointer.load(step=self.config.checkpoint.load_step)
        self.checkpointer.load = lambda step: False  # the loop's own call
        self.learner.open()
        for each in self.lr_schedulers:
            self.learner.schedule(each)
        if self.step > self.learner.cursor:  # the checkpoint has steps that the job never got
            self.dataloader.load_state_dict(begin)
            self.step = 0
        self.ahead, self.step = self.learner.cursor - self.step, self.learner.cursor
        self._go_on_unless(finished=self.learner.finished)
        super().train()

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        """Go on with the data at the cursor, which is torchtitan's number of steps."""
        batches = iter(data_iterable)
        batches_of_step = self.gradient_accumulation_steps * self.num_pipeline_parallel_microbatches
        for _ in range(self.ahead * batches_of_step):
            next(batches)
        return super().batch_generator(batches)  # type: ignore[no-any-return]

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """One step of torchtitan and of the learner, with tokens and loss of all its ranks."""
        self.loss, self.copied = torch.zeros((), device=self.device), device_module.Event()
        super().train_step(data_iterator)
        loss = self.loss
        for mesh in ("loss", "pp"):
            loss = dist_sum_tensor(loss, self.parallel_dims.get_optional_mesh(mesh))
        self.copied.synchronize()  # done long ago
        done = self.learner.step(tokens=int(self.tokens), loss=loss)
        self._go_on_unless(finished=done.finished)

    def forward_backward_step(self, *, global_valid_tokens: Any, **given: Any) -> Any:
        """Keep what `learner.step` needs; a GPU copies it without a wait."""
        self.tokens = global_valid_tokens.to("cpu", non_blocking=True)
        self.copied.record()
        loss = super().forward_backward_step(global_valid_tokens=global_valid_tokens, **given)
        if getattr(self, "pp_has_last_stage", True):  # else it says nothing
            self.loss = self.loss + loss.detach()
        return loss

    def close(self) -> None:
        """Leave the job, in order or by the error that ends the training."""
        self.learner.close(sys.exception())
        super().close()

    def _go_on_unless(self, *, finished: bool) -> None:
        """The loop ends, and saves its last checkpoint, in the step that has this number."""
        self.config.training.steps = self.step + (not finished)


def share(name: str, job: atoll.Job) -> DatasetConfig:
    """The part of a data set that is this learner's; torchtitan divides it among the ranks."""
    if name not in DATASETS:
        raise atoll.SpecError(
            "dataloader",
            "reads data that are not in torchtitan's DATASETS, so every learner would train on all",
            "give each learner its part by atoll.job(), as share() in titan_trainer.py does",
        )
    whole = DATASETS[name]

    def load(path: str) -> Any:
        return split_dataset_by_node(whole.loader(path), job.index, len(job.slots))

    return replace(whole, loader=load)
