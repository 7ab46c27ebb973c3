"""Names of a model's tensors as its own state dict has them, without those of wrappers.

A wrapper (torch.compile, activation checkpointing, FSDP, DistributedDataParallel) keeps the user's
module in an attribute of its own, which would become a part of every name: a learner with
activation checkpointing could not join one without, and an export would not load into the bare
model. Other prefixes are names of the user's, such as the `net.` of a LightningModule.

A hook of a module that puts other tensors in the place of a parameter (a fused projection that is
saved as three) makes copies, which adoptions do not reach, and of a DTensor by collectives, which
one rank alone would wait in for ever. `without_hooks` leaves these out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from atoll_worker.ranks.boxes import shard

WRAPPING = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
PARALLEL_CHILD = "module"


def unwrapped(model: nn.Module) -> nn.Module:
    while True:
        child = PARALLEL_CHILD if isinstance(model, PARALLEL) else ""
        child = next((name for name in WRAPPING if name in model._modules), child)
        inner = model._modules.get(child) if child else None
        if inner is None:
            return model
        model = inner


def cleaner(model: nn.Module) -> Callable[[str], str]:
    """A function that takes the wrappers' parts out of a name in `model`."""
    modules = model.named_modules(remove_duplicate=False)
    wrappers = [_plain(f"{path}.") for path, module in modules if isinstance(module, PARALLEL)]
    wrappers.sort(key=len, reverse=True)  # the innermost first: its path has the outer ones' parts

    def clean(name: str) -> str:
        name = _plain(name)  # first: a state dict may have left these out already
        for path in wrappers:
            before = path.removeprefix(".")
            if name.startswith(f"{before}{PARALLEL_CHILD}."):
                name = before + name.removeprefix(f"{before}{PARALLEL_CHILD}.")
        return name

    return clean


def _plain(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in WRAPPING)


def state_of(model: nn.Module) -> dict[str, object]:
    """The model's state dict by clean keys; its tensors lie in the model's memory."""
    clean = cleaner(model)
    try:
        found = model.state_dict(keep_vars=True)
    except TypeError:  # a state_dict of the user's without torch's arguments
        found = model.state_dict()
    return {clean(key): value for key, value in found.items()}


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """A state dict has the modules' own tensors under their own names, and runs no hook."""
    kept = [
        (module.__dict__, name, module.__dict__[name])
        for module in model.modules()
        for name in ("_state_dict_hooks", "_state_dict_pre_hooks")
    ]
    try:
        for attributes, name, _ in kept:
            attributes[name] = OrderedDict()
        yield
    finally:
        for attributes, name, hooks in kept:
            attributes[name] = hooks


def same_memory(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two tensors only if they are the same values in the same memory, a DTensor's shard.

    On a rank whose shard is empty it says nothing.
    """
    here = shard(tensor)
    return here.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def shortened(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
