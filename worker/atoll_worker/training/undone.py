"""Notices an optimizer whose steps undo what was adopted: it keeps copies of the parameters.

Some optimizers step copies of their own, f32 masters of 16-bit parameters, and write them into the
model after each step (apex and TransformerEngine with master weights, DeepSpeed, Megatron). A value
that the learner puts into the model is then lost with the next step, and the learner trains on
alone without a word. Nothing in an optimizer's interface tells of copies, so two things are looked
at.

*What steps do*: a few elements `before` and `after` an adoption, and `now`, when the next step was
made.

    change d = after - before;    step r = now - after
    |r + d| < |d| / 2:  the step went back to where the model was: it is undone
    |r|     < |d| / 2:  the step began at the adopted value: it is kept

Anything else, and a step of zero (GradScaler has skipped it), says nothing. Nor does the first of
these steps of a parameter, since many optimizers make their copies in it, of what is adopted by
then. KEPT_MIN kept values, or LOOKS_MAX looks, end the watch.

*What optimizers hold*, once UNDONE_MIN values were undone and none kept. A quick optimizer on a toy
problem goes back to the optimum after every adoption too, so the learner ends only where there is a
copy: a tensor in the optimizer that has just what is in the model; or it steps other parameters,
and no optimizer those of the model. All optimizers of torch that make a step in this process
are known, by a hook. Where none has a copy, the user is warned, for 16-bit parameters.

Of a model that is cut over several ranks the first one that trains something, mostly the head,
looks at what it holds itself: a step of an optimizer is the same operation on every shard, so what
it does here it does everywhere.

What steps do is computed on the model's device, and read when it is done: nothing waits.
"""

import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.hooks import RemovableHandle

from atoll_protos.errors import SpecError
from atoll_worker.ranks.boxes import shard
from atoll_worker.training.staging import Pairs, Scalar, Staging

ELEMENTS_MIN, ELEMENTS_MAX = 16, 4096  # looked at in an adoption
UNDONE_MIN, KEPT_MIN = 3, 3
LOOKS_MAX = 100
DEPTH_MAX = 5  # of containers in an optimizer
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
REMEDY = (
    "register learner.on_adopt(fn), where fn copies the model's values into them (and load no "
    "weights into the model once the learner is open)"
)


@dataclass(slots=True, kw_only=True)
class Sample:
    """Some elements of a parameter around one adoption."""

    theta: Tensor  # a view of the parameter
    before: Tensor  # f32
    after: Tensor | None = None  # f32


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one step has made of one adoption: 1 undone, -1 kept, 0 neither."""

    parameter: int  # its memory
    step: int
    value: Scalar


@dataclass(slots=True, kw_only=True)
class Watch:
    """The adoptions of one learner, until it is known what its optimizer makes of them."""

    staging: Staging
    samples: list[Sample] = field(default_factory=list)  # since the last step
    verdicts: deque["Verdict"] = field(default_factory=deque)
    steps: int = 0
    first_steps: dict[int, int] = field(default_factory=dict)  # of parameters, by their memory
    looks: int = 0
    undone: int = 0
    kept: int = 0
    over: bool = False
    stepped: "weakref.WeakSet[Optimizer]" = field(default_factory=weakref.WeakSet)
    hook: RemovableHandle | None = None

    def begin(self) -> None:
        """Take notice of all optimizers that make a step in this process."""
        self.hook = register_optimizer_step_post_hook(lambda made, *_: self.stepped.add(made))

    def end(self) -> None:
        """Nothing more is looked at."""
        self.over = True
        self.samples.clear()
        if self.hook is not None:
            self.hook.remove()
            self.hook = None

    @torch.no_grad()
    def before(self, pairs: Pairs, averaged: Sequence[bool]) -> Sample | None:
        """What to look at in an adoption that comes now; None if nothing in it is suitable."""
        found = zip(pairs, averaged, strict=True)
        thetas = [theta for (theta, _), is_buffer in found if not is_buffer]
        largest = max(thetas, key=Tensor.numel, default=None)
        if (
            self.over
            or largest is None
            or largest.numel() < ELEMENTS_MIN
            or not largest.is_contiguous()
        ):
            return None
        part = _some_of(largest)
        return Sample(theta=part, before=part.to(torch.float32, copy=True))

    @torch.no_grad()
    def after(self, sample: Sample) -> None:
        """The adoption is made, or put in line."""
        sample.after = sample.theta.to(torch.float32, copy=True)
        self.samples.append(sample)

    @torch.no_grad()
    def judge(self) -> str:
        """A step was made since. Returns a warning, mostly an empty one.

        Raises SpecError when it is certain that adoptions are undone by an optimizer's copies.
        """
        samples, self.samples = self.samples, []
        self.steps += 1
        for sample in samples:
            assert sample.after is not None
            change = sample.after - sample.before
            step = sample.theta.to(torch.float32) - sample.after
            limit, made = change.norm() / 2, step.norm()
            undone = ((step + change).norm() < limit).to(torch.int8)
            kept = ((made < limit) & (made > 0)).to(torch.int8)
            value = self.staging.scalar(undone - kept)
            parameter = _storage(sample.theta)
            self.verdicts.append(Verdict(parameter=parameter, step=self.steps, value=value))
            self.looks += 1
        while self.verdicts and self.verdicts[0].value.ticket.done():
            self._count(self.verdicts.popleft())
        if self.undone >= UNDONE_MIN and not self.kept and samples:
            return self._accuse(samples[-1].theta)
        if self.kept >= KEPT_MIN or self.looks >= LOOKS_MAX:
            self.end()
        return ""

    def _count(self, verdict: Verdict) -> None:
        value = verdict.value.host.item()
        if value and self.first_steps.setdefault(verdict.parameter, verdict.step) < verdict.step:
            self.undone += value > 0
            self.kept += value < 0

    def _accuse(self, theta: Tensor) -> str:
        """Whose copies undo the adoptions; without any, only a warning."""
        copies = copies_of(theta, [*self.stepped])
        self.end()
        if copies:
            raise SpecError("optimizer", f"{copies}, and its steps undo what is adopted", REMEDY)
        if theta.dtype not in SIXTEEN_BITS:
            return ""
        return (
            "the steps of the optimizer take the model back to where it was before it adopted "
            f"values of the job; if it keeps copies of the parameters, {REMEDY}"
        )


def copies_of(theta: Tensor, optimizers: Sequence[Optimizer]) -> str:
    """Which optimizer has copies of the parameter of which `theta` is a part; empty if none has.

    `theta` is contiguous, and the newest step was made. An optimizer that steps the parameter
    itself may have its masters anywhere in its attributes. If there is none, one steps copies.
    """
    others = ""
    for optimizer in optimizers:
        name = type(optimizer).__name__
        stepped = (each for group in optimizer.param_groups for each in group["params"])
        owner = next((each for each in stepped if _storage(each) == _storage(theta)), None)
        if owner is None:
            others = others or f"{name} steps copies of the parameters"
        else:
            kept = _is_in(optimizer, theta, shard(owner))
            return f"{name} keeps copies of the parameters" if kept else ""
    return others


def _is_in(optimizer: Optimizer, theta: Tensor, owner: Tensor) -> bool:
    """Whether a tensor of the optimizer, rounded, has just the values of this part of `owner`."""
    start = theta.storage_offset() - owner.storage_offset()
    part = slice(start, start + theta.numel())
    if theta.min() == theta.max():
        return False  # zeros are everywhere
    for tensor in _tensors_in(vars(optimizer), DEPTH_MAX):
        if tensor.shape == owner.shape and _storage(tensor) != _storage(owner):
            values = tensor.detach().reshape(-1)[part].to(theta.device, theta.dtype)
            if torch.equal(values, theta.reshape(-1)):
                return True
    return False


def _tensors_in(value: object, depth: int) -> Iterator[Tensor]:
    """The floating-point tensors in nested containers; of DTensors the shards.

    Without quantised ones: few operations are defined for their classes, and what is rounded to 8
    bits is no copy.
    """
    if isinstance(value, Tensor):
        value = shard(value)
        if value.is_floating_point() and not is_traceable_wrapper_subclass(value):
            yield value
    elif depth and isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_in(each, depth - 1)
    elif depth and isinstance(value, list | tuple | set | deque):
        for each in value:
            yield from _tensors_in(each, depth - 1)


def _storage(tensor: Tensor) -> int:
    return shard(tensor).untyped_storage().data_ptr()


def _some_of(tensor: Tensor) -> Tensor:
    """A view of at most ELEMENTS_MAX elements."""
    while tensor.numel() > ELEMENTS_MAX:
        rows = ELEMENTS_MAX // (tensor.numel() // len(tensor))
        tensor = tensor[:rows] if rows else tensor[0]
    return tensor
