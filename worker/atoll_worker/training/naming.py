"""Names of a model's tensors as its own state dict has them, without those of wrappers.

A wrapper keeps the user's module in an attribute of its own, which would become a part of every
name: a learner with activation checkpointing could not join one without, and an export would not
load into the bare model.

    torch.compile                        _orig_mod.
    activation checkpointing, FSDP       _checkpoint_wrapped_module., _fsdp_wrapped_module.
    DistributedDataParallel, DataParallel    module., of such a wrapper only

Other prefixes stay, for they are names of the user's: the `net.` of a LightningModule that keeps
its model in `self.net`. The names are those of the model that is given to the Learner.

A module may change its state dict by hooks. One that puts other tensors in the place of a parameter
(a fused projection that is saved as three) makes copies, which training and adoptions do not reach,
and of a DTensor it makes them by collectives, which one rank alone would wait in for ever.
`without_hooks` leaves these out.
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
    """The user's own module inside the wrappers."""
    while True:
        child = PARALLEL_CHILD if isinstance(model, PARALLEL) else ""
        child = next((name for name in WRAPPING if name in model._modules), child)
        inner = model._modules.get(child) if child else None
        if inner is None:
            return model
        model = inner


def cleaner(model: nn.Module) -> Callable[[str], str]:
    """A function that takes the wrappers' parts out of a name in `model`."""
    parallel = sorted(
        (
            f"{_plain(path)}.{PARALLEL_CHILD}.".removeprefix(".")
            for path, module in model.named_modules(remove_duplicate=False)
            if isinstance(module, PARALLEL)
        ),
        key=len,
        reverse=True,
    )

    def clean(name: str) -> str:
        name = _plain(name)  # first: a state dict may have left these out already
        for prefix in parallel:  # the innermost first: its path still has the outer ones' parts
            if name.startswith(prefix):
                name = prefix.removesuffix(f"{PARALLEL_CHILD}.") + name.removeprefix(prefix)
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
    """Equal for two tensors only if they are the same values in the same memory.

    Of a DTensor that memory is its shard's; on a rank whose shard is empty it says nothing.
    """
    here = shard(tensor)
    return here.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def shortened(names: Sequence[str], most: int = 5) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
