"""Notices an optimizer whose steps undo what was adopted: it keeps copies of the parameters.

Some optimizers step copies of their own, f32 masters of 16-bit parameters, and write them into the
model after each step (apex and TransformerEngine with master weights, DeepSpeed, Megatron). A value
that the learner puts into the model is then lost with the next step, and the learner trains on
alone without a word. Nothing in an optimizer's interface tells of copies, so the values are looked
at: a few elements `before` and `after` an adoption, and `now`, when the next step was made.

    change d = after - before;    step r = now - after
    |r + d| < |d| / 2:  the step went back to where the model was: it is undone
    |r|     < |d| / 2:  the step began at the adopted value: it is kept

Anything else, and a step of zero (GradScaler has skipped it), says nothing. UNDONE_MIN undone
values and none kept end the learner; KEPT_MIN kept ones end the watch. Only 16-bit parameters are
watched, and all when the learner enters, where a change is large against a step if there is one.
A quick optimizer on a toy problem in f32 may go back to the optimum after every adoption.

All is computed on the model's device, and read when it is done: nothing waits.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atoll_protos.errors import SpecError
from atoll_worker.training.staging import Pairs, Scalar, Staging

ELEMENTS_MIN, ELEMENTS_MAX = 16, 4096  # looked at in an adoption
WATCHED = (torch.bfloat16, torch.float16)
UNDONE_MIN, KEPT_MIN = 3, 3
LOOKS_MAX = 100  # a watch that has found nothing until then ends


@dataclass(slots=True, kw_only=True)
class Sample:
    """Some elements of a parameter around one adoption."""

    theta: Tensor  # a view of the parameter
    before: Tensor  # f32
    after: Tensor | None = None  # f32


@dataclass(slots=True, kw_only=True)
class Watch:
    """The adoptions of one learner, until it is known what its optimizer makes of them."""

    staging: Staging
    samples: list[Sample] = field(default_factory=list)  # since the last step
    verdicts: deque[Scalar] = field(default_factory=deque)  # 1 undone, -1 kept, 0 neither
    looks: int = 0
    undone: int = 0
    kept: int = 0

    @property
    def over(self) -> bool:
        """Nothing more is looked at."""
        return self.kept >= KEPT_MIN or self.looks >= LOOKS_MAX

    @torch.no_grad()
    def before(self, pairs: Pairs, averaged: Sequence[bool], *, entering: bool) -> Sample | None:
        """What to look at in an adoption that comes now; None if nothing in it is suitable."""
        if self.over:
            return None
        suitable = [
            theta
            for (theta, _), is_buffer in zip(pairs, averaged, strict=True)
            if not is_buffer and (entering or theta.dtype in WATCHED)
        ]
        largest = max(suitable, key=Tensor.numel, default=None)
        if largest is None or largest.numel() < ELEMENTS_MIN:
            return None
        part = _some_of(largest)
        return Sample(theta=part, before=part.to(torch.float32, copy=True))

    @torch.no_grad()
    def after(self, sample: Sample) -> None:
        """The adoption is made, or put in line."""
        sample.after = sample.theta.to(torch.float32, copy=True)
        self.samples.append(sample)

    @torch.no_grad()
    def judge(self) -> None:
        """A step was made since. Raises SpecError when it is certain that adoptions are undone."""
        for sample in self.samples:
            assert sample.after is not None
            change = sample.after - sample.before
            step = sample.theta.to(torch.float32) - sample.after
            limit, made = change.norm() / 2, step.norm()
            undone = ((step + change).norm() < limit).to(torch.int8)
            kept = ((made < limit) & (made > 0)).to(torch.int8)
            self.verdicts.append(self.staging.scalar(undone - kept))
            self.looks += 1
        self.samples.clear()
        while self.verdicts and self.verdicts[0].ticket.done():
            verdict = self.verdicts.popleft().host.item()
            self.undone += verdict > 0
            self.kept += verdict < 0
        if self.undone >= UNDONE_MIN and not self.kept:
            raise SpecError(
                "optimizer",
                "its steps undo what the learner adopts: it writes copies of the parameters, which "
                "it keeps itself, into the model",
                "register learner.on_adopt(fn), where fn copies the model's values into them (and "
                "load no weights into the model once the learner is open)",
            )


def _some_of(tensor: Tensor) -> Tensor:
    """A view of at most ELEMENTS_MAX elements."""
    while tensor.numel() > ELEMENTS_MAX:
        rows = ELEMENTS_MAX // (tensor.numel() // len(tensor))
        tensor = tensor[:rows] if rows else tensor[0]
    return tensor
