"""What a Learner does with optimizers: look through wrappers, check them, follow their steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from atoll_protos.errors import SpecError
from atoll_worker.ranks.redistribution import TravellingTensor

Settings: TypeAlias = Mapping[str, Mapping[str, object]]  # by the names of tensors
COMPARED: Final = (
    *("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    *("amsgrad", "alpha", "centered", "rho", "lr_decay", "decoupled_weight_decay"),
)


def unwrapped(optimizer: Any) -> Optimizer:
    """The torch optimizer inside the wrappers of accelerate and Lightning; SpecError for none."""
    found = optimizer
    while not hasattr(found, "_optimizer_step_post_hooks") and hasattr(found, "optimizer"):
        found = found.optimizer
    if not isinstance(found, Optimizer) or not hasattr(found, "_optimizer_step_post_hooks"):
        raise SpecError(
            "optimizer",
            f"{type(optimizer).__name__} is no torch.optim.Optimizer",
            "leave the optimizer out, call learner.step() after each of its steps, and register "
            "learner.on_adopt(fn) if it keeps copies of the parameters",
        )
    return found


def listed(given: Any) -> tuple[Optimizer, ...]:
    """One optimizer, a sequence of several, or none, as a tuple of torch optimizers."""
    if given is None:
        return ()
    return tuple(map(unwrapped, given if isinstance(given, Sequence) else (given,)))


def check(optimizers: Iterable[Optimizer], models: Sequence[nn.Module], *, told: bool) -> None:
    """Raises SpecError for an optimizer of another model: training would silently do nothing.

    One that steps copies (f32 masters) is right if the user is `told` of adoptions by `on_adopt`.
    """
    ours = {id(each) for model in models for each in model.parameters()}
    for optimizer in optimizers:
        stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if stepped.isdisjoint(ours) and not told:
            raise SpecError(
                "optimizer",
                f"{type(optimizer).__name__} steps none of the model's parameters",
                "build it from the parameters of the model that you give to Learner; if it steps "
                "copies of them, register learner.on_adopt(fn) before entering, where fn copies "
                "the model's values into them",
            )


def settings(optimizers: Iterable[Optimizer], places: Sequence[TravellingTensor]) -> Settings:
    """With which settings each tensor that travels is stepped here, by its name."""
    names = {id(getattr(each.module, each.attribute)): each.spec.name for each in places}
    found: dict[str, dict[str, object]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            kept: dict[str, object] = {"class": type(optimizer).__name__}
            kept |= {key: _plain(group[key]) for key in COMPARED if key in group}
            found |= {names[id(each)]: kept for each in group["params"] if id(each) in names}
    return found


def check_alike(said: Sequence[Settings]) -> None:
    """Refuse ranks that step one tensor differently: its replicas would drift apart. SpecError."""
    first: dict[str, int] = {}
    for rank, theirs in enumerate(said):
        for name, kept in theirs.items():
            other = first.setdefault(name, rank)
            known = said[other][name]
            for key in (*known, *kept):
                one, two = known.get(key, "nothing"), kept.get(key, "nothing")
                if one != two:
                    raise SpecError(
                        "optimizer",
                        f"the ranks step {name} with another {key}: {one} on rank {other}, {two}"
                        f" on {rank}",
                        "build the optimizer with the same settings on every rank",
                    )


def _plain(value: object) -> object:
    """A setting as a value that can be compared: some are tensors of one element."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value if value is None or isinstance(value, bool | int | float) else repr(value)


@dataclass(slots=True)
class Hooks:
    """What one Learner has registered with optimizers, until `close`."""

    followed: Optimizer | None = None
    handles: list[RemovableHandle] = field(default_factory=list)
    announced: set[int] = field(default_factory=set)  # ids of those whose steps are said before

    def follow(self, optimizer: Optimizer, count: Callable[[], object]) -> None:
        """Call `count` after every step that `optimizer` has really made; SpecError for a second.

        GradScaler does not call an optimizer whose gradients are not finite. A fused one it does
        call, with `found_inf`, and the kernel skips the step; reading that waits for the device.
        """
        if self.followed is not None:
            remedy = "follow one: that which makes the last step where several step together"
            raise SpecError("follow", "an optimizer is followed already", remedy)
        self.followed = optimizer

        def hook(stepped: Optimizer, *_: object) -> None:
            found_inf = getattr(stepped, "found_inf", None)
            if found_inf is None or not float(found_inf):
                count()

        self.handles.append(optimizer.register_step_post_hook(hook))

    def announce(self, optimizer: Optimizer, begin: Callable[[], object]) -> None:
        """Call `begin` before each step of it, once however often it is announced."""

        def hook(*_: object) -> None:
            begin()

        if id(optimizer) not in self.announced:
            self.announced.add(id(optimizer))
            self.handles.append(optimizer.register_step_pre_hook(hook))

    def close(self) -> None:
        while self.handles:
            self.handles.pop().remove()
