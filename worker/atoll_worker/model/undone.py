"""Notices an optimizer whose steps undo what was adopted: it keeps copies of the parameters.

Some step f32 masters of 16-bit parameters and write them into the model after each step (apex and
TransformerEngine with master weights, DeepSpeed, Megatron), so that an adopted value is lost with
the next step. A few elements are looked at: `before` and `after` an adoption, and `now`, when the
next step was made.

    change d = after - before;    step r = now - after
    |r + d| < |d| / 2:  the step went back to where the model was: it is undone
    |r|     < |d| / 2:  the step began at the adopted value: it is kept

Anything else, and a step of zero (GradScaler has skipped it), says nothing. Nor does the first of
these steps of a parameter, in which many optimizers make their copies, of what is adopted by then.

UNDONE_MIN undone values and none kept are a reason to warn, once. It is no proof: a quick optimizer
on a toy problem goes back to the optimum after every adoption too.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atoll_worker.model.staging import DirectStaging, Pairs, Scalar
from atoll_worker.ranks.redistribution import shard

ELEMENTS_MIN, ELEMENTS_MAX = 16, 4096  # looked at in an adoption
UNDONE_MIN, KEPT_MIN = 3, 3
LOOKS_MAX = 100
WARNING = (
    "the steps of the optimizer take the model back to where it was before it adopted values of "
    "the job; if it keeps copies of the parameters, register learner.on_adopt(fn), where fn copies "
    "the model's values into them (and load no weights into the model once the learner is open)"
)


Sample = tuple[Tensor, Tensor]  # a view of some elements of a parameter; their values, f32


@dataclass(slots=True, kw_only=True)
class Watch:
    """The adoptions of one learner, until it is known what its optimizer makes of them."""

    staging: DirectStaging
    samples: list[tuple[Sample, Tensor]] = field(default_factory=list)  # and what was adopted, f32
    # What a step has made of an adoption of a parameter, which its memory names: its number, and
    # 1 for undone, -1 for kept, 0 for neither.
    verdicts: deque[tuple[int, int, Scalar]] = field(default_factory=deque)
    steps: int = 0
    first_steps: dict[int, int] = field(default_factory=dict)  # of parameters, by their memory
    looks: int = 0
    undone: int = 0
    kept: int = 0
    over: bool = False

    def end(self) -> None:
        self.over = True
        self.samples.clear()

    @torch.no_grad()
    def before(self, pairs: Pairs, averaged: Sequence[bool]) -> Sample | None:
        """What to look at in an adoption that comes now; None if nothing in it is suitable."""
        found = zip(pairs, averaged, strict=True)
        thetas = [theta for (theta, _), is_buffer in found if not is_buffer]
        largest = max(thetas, key=Tensor.numel, default=None)
        if self.over or largest is None or not largest.is_contiguous():
            return None
        if largest.numel() < ELEMENTS_MIN:
            return None
        while largest.numel() > ELEMENTS_MAX:
            rows = ELEMENTS_MAX // (largest.numel() // len(largest))
            largest = largest[:rows] if rows else largest[0]
        return largest, largest.to(torch.float32, copy=True)

    @torch.no_grad()
    def after(self, sample: Sample) -> None:
        """The adoption is made, or put in line."""
        self.samples.append((sample, sample[0].to(torch.float32, copy=True)))

    @torch.no_grad()
    def judge(self) -> str:
        """A step was made since. Returns a warning, mostly an empty one."""
        samples, self.samples = self.samples, []
        self.steps += 1
        for (theta, before), after in samples:
            change, step = after - before, theta.to(torch.float32) - after
            limit, made = change.norm() / 2, step.norm()
            undone = ((step + change).norm() < limit).to(torch.int8)
            kept = ((made < limit) & (made > 0)).to(torch.int8)
            parameter = shard(theta).untyped_storage().data_ptr()
            self.verdicts.append((parameter, self.steps, self.staging.scalar(undone - kept)))
            self.looks += 1
        while self.verdicts and self.verdicts[0][2].ticket.done():
            parameter, number, said = self.verdicts.popleft()
            value = said.host.item()
            if value and self.first_steps.setdefault(parameter, number) < number:
                self.undone += value > 0
                self.kept += value < 0
        if not self.over and self.undone >= UNDONE_MIN and not self.kept:
            self.end()
            return WARNING
        if self.kept >= KEPT_MIN or self.looks >= LOOKS_MAX:
            self.end()
        return ""
