"""What a Learner does with optimizers: look through wrappers, check them, follow their steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from atoll_protos.errors import SpecError
from atoll_worker.ranks.boxes import Placed

Settings: TypeAlias = Mapping[str, Mapping[str, object]]  # by the names of tensors
COMPARED: Final = (
    *("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    *("amsgrad", "alpha", "centered", "rho", "lr_decay", "decoupled_weight_decay"),
)


def unwrapped(optimizer: Any) -> Optimizer:
    """The torch optimizer itself: accelerate and Lightning give their users wrappers of it.

    Raises SpecError for what is no torch optimizer.
    """
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
    many = isinstance(given, Sequence)
    return tuple(unwrapped(each) for each in (given if many else (given,)))


def check(optimizers: Iterable[Optimizer], models: Sequence[nn.Module], *, told: bool) -> None:
    """Refuse an optimizer of another model, with which training would silently do nothing.

    Raises SpecError. An optimizer may step copies of the parameters (f32 masters of a bf16 model);
    then the user has to bring adopted values into the copies, and is `told` of them by `on_adopt`.
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


def settings(optimizers: Iterable[Optimizer], places: Sequence[Placed]) -> Settings:
    """With which settings each tensor that travels is stepped here, by its name.

    Those that are known to matter; what else an optimizer of the user's keeps in its groups may
    differ between ranks by right.
    """
    names = {id(getattr(each.module, each.attribute)): each.spec.name for each in places}
    found: dict[str, dict[str, object]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            kept: dict[str, object] = {"class": type(optimizer).__name__}
            kept |= {key: _plain(group[key]) for key in COMPARED if key in group}
            found |= {names[id(each)]: kept for each in group["params"] if id(each) in names}
    return found


def check_alike(said: Sequence[Settings]) -> None:
    """Refuse ranks that step shards or replicas of one tensor differently, by what each has said.

    Replicas would drift apart, of which only one is offered. Raises SpecError.
    """
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
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def after_each_step(optimizer: Optimizer, count: Callable[[], object]) -> RemovableHandle:
    """Call `count` after every step that `optimizer` has really made.

    GradScaler does not call an optimizer whose gradients are not finite. A fused one it does call,
    with `found_inf`, and the kernel skips the step; reading that waits for the device.
    """

    def hook(stepped: Optimizer, arguments: object, named: object) -> None:
        del arguments, named
        found_inf = getattr(stepped, "found_inf", None)
        if found_inf is None or not float(found_inf):
            count()

    return optimizer.register_step_post_hook(hook)


def before_each_step(optimizer: Optimizer, begin: Callable[[], object]) -> RemovableHandle:
    """Call `begin` when `optimizer` begins to step."""

    def hook(steps: Optimizer, arguments: object, named: object) -> None:
        del steps, arguments, named
        begin()

    return optimizer.register_step_pre_hook(hook)


@dataclass(slots=True)
class Hooks:
    """What one Learner has registered with optimizers, until `close`."""

    followed: Optimizer | None = None
    handles: list[RemovableHandle] = field(default_factory=list)
    announced: set[int] = field(default_factory=set)  # ids of those whose steps are said before

    def follow(self, optimizer: Optimizer, count: Callable[[], object]) -> None:
        """Call `count` after each step of the one that is followed; SpecError for a second one."""
        if self.followed is not None:
            raise SpecError(
                "follow",
                "an optimizer is followed already",
                "follow one: that which makes the last step where several step together",
            )
        self.followed = optimizer
        self.handles.append(after_each_step(optimizer, count))

    def announce(self, optimizer: Optimizer, begin: Callable[[], object]) -> None:
        """Call `begin` before each step of it, once however often it is announced."""
        if id(optimizer) not in self.announced:
            self.announced.add(id(optimizer))
            self.handles.append(before_each_step(optimizer, begin))

    def close(self) -> None:
        """Nothing is called any more."""
        while self.handles:
            self.handles.pop().remove()
