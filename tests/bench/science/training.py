"""What a learner does between two boundaries: model, data and optimizers of examples/bytegpt."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from bench.science.setting import Setting
from bytegpt import data
from bytegpt.evaluate import heldout_loss
from bytegpt.model import ByteGPT, Size
from bytegpt.train import BETAS, GRADIENT_NORM_MAX, WEIGHT_DECAY, warmup_then_cosine

HELDOUT_BYTES: Final = 1 << 17
DEVICE: Final = "cuda" if torch.cuda.is_available() else "cpu"


class Training:
    """A model, and its steps."""

    def __init__(self, setting: Setting) -> None:
        self.model = model_of(setting).to(DEVICE)
        self._optimizers = optimizers(self.model, setting)
        self._peaks = [group["lr"] for each in self._optimizers for group in each.param_groups]
        self._share = warmup_then_cosine(setting.steps)
        self._steps = setting.steps

    def step(self, windows: Tensor, progress: float) -> None:
        """Windows int64 [batch, context + 1]; `progress` of the job, 0 to 1, sets the rate."""
        groups = (group for each in self._optimizers for group in each.param_groups)
        for peak, group in zip(self._peaks, groups, strict=True):
            group["lr"] = peak * self._share(round(progress * self._steps))
        self.model.loss(windows.to(DEVICE)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM_MAX)
        for each in self._optimizers:
            each.step()
            each.zero_grad()


def model_of(setting: Setting) -> ByteGPT:
    """As all learners begin."""
    shape = setting.shape
    size = Size(layers=shape.layers, heads=shape.heads, width=shape.width, context=setting.context)
    return ByteGPT(size, seed=setting.seed)


def optimizers(model: ByteGPT, setting: Setting) -> Sequence[Optimizer]:
    """AdamW; or Muon for the matrices of the blocks, as MuLoCo (arXiv 2505.23725) has it."""

    def adamw(parameters: Iterable[torch.nn.Parameter]) -> Optimizer:
        return torch.optim.AdamW(
            parameters, lr=setting.rate, betas=BETAS, weight_decay=WEIGHT_DECAY
        )

    if not setting.muon_rate:
        return [adamw(model.parameters())]
    matrices = [each for each in model.blocks.parameters() if each.ndim == 2]
    others = [each for each in model.parameters() if all(each is not one for one in matrices)]
    muon = torch.optim.Muon(matrices, lr=setting.muon_rate, weight_decay=WEIGHT_DECAY)
    return [muon, adamw(others)]


@cache
def text() -> data.Text:
    return data.read()


def batches(setting: Setting, learner: int) -> data.Batches:
    """Of one learner: alike in all runs that are compared."""
    return data.Batches(
        text=text().shard(learner, setting.learners),
        seed=setting.seed,
        slot=f"a-{learner}",
        batch=setting.batch,
        context=setting.context,
    )


def loss(model: ByteGPT, setting: Setting) -> float:
    """Held-out, in nats per byte."""
    windows = data.windows(text().heldout(), context=setting.context, byte_count_max=HELDOUT_BYTES)
    return heldout_loss(model, windows)


def data_parallel(setting: Setting) -> float:
    """The loss after as many steps, each of all learners' batches and their mean gradient."""
    training = Training(setting)
    learners = [batches(setting, number) for number in range(setting.learners)]
    for step in range(setting.steps):
        windows = torch.cat([each.at(step) for each in learners])
        training.step(windows, step / setting.steps)
    return loss(training.model, setting)
