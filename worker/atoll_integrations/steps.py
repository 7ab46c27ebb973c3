"""Whether the optimizers of a trainer have really stepped."""

from collections.abc import Iterable
from typing import Any


class OptimizerSteps:
    """Watches optimizers by torch's own hook; `taken` until `clear()` says that it was seen.

    GradScaler does not call an optimizer whose gradients are not finite. A fused one it does call,
    with `found_inf`, and the kernel skips the step.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self.taken = False
        self._hooks = [unwrapped(each).register_step_post_hook(self._note) for each in optimizers]

    def clear(self) -> None:
        self.taken = False

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, optimizer: Any, *_: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        self.taken |= found_inf is None or not float(found_inf)


def unwrapped(optimizer: Any) -> Any:
    while not hasattr(optimizer, "_optimizer_step_post_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
