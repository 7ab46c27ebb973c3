"""Which tensors of a model travel, how each is merged, and where a slice lies in them (rule 18).

A tensor *travels* if the learners exchange it. All processes of a job derive the same list from the
same model, in the order of the names, and from it the layout of fragments and slices. Beside what
the rule names, complex and unsaved buffers stay; the plain mean of embeddings and of heads tied to
them is as published (arXiv 2604.21428).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import AVERAGE, Slice, TensorSpec
from atoll_protos.transfer.codecs import Packed
from atoll_worker.model.naming import cleaner
from atoll_worker.model.tensors import DTYPES
from atoll_worker.ranks.blocks import untrained
from atoll_worker.ranks.boxes import TravellingTensor

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def travelling(model: nn.Module, mean_patterns: Sequence[str] = ()) -> tuple[TravellingTensor, ...]:
    """What `travelling_of` has of one model; SpecError also for one that has nothing."""
    places = travelling_of([model], mean_patterns)
    if not places:
        raise untrained()
    return places


def travelling_of(
    models: Sequence[nn.Module], mean_patterns: Sequence[str] = ()
) -> tuple[TravellingTensor, ...]:
    """Those of all parts of a model that this process has; none in a frozen stage of a pipeline.

    `mean_patterns` are shell globs. Raises SpecError for tensors that cannot travel (of another
    dtype, sparse, without a shape yet), and for a model on several devices.
    """
    places = tuple(place for model in models for place in _of_part(model, mean_patterns))
    if places:
        device_of(places)
    return places


def _of_part(model: nn.Module, mean_patterns: Sequence[str]) -> tuple[TravellingTensor, ...]:
    embeddings = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    places: list[TravellingTensor] = []
    refused: list[tuple[str, str, str]] = []  # name, problem, remedy
    for name, module, attribute, tensor, is_buffer in candidates(model):
        by_mean = id(tensor) in embeddings or any(fnmatchcase(name, each) for each in mean_patterns)
        merge = AVERAGE if is_buffer else "mean" if by_mean else "rda"
        if tensor.dtype not in DTYPE_NAMES or tensor.layout != torch.strided:
            refused.append((name, *_objection(tensor, is_buffer=is_buffer)))
            continue
        shape = tuple(tensor.shape)
        spec = TensorSpec(name=name, shape=shape, dtype=DTYPE_NAMES[tensor.dtype], merge=merge)
        places.append(TravellingTensor(module=module, attribute=attribute, spec=spec))
    if refused:
        name, problem, remedy = refused[0]
        others = f", and {len(refused) - 1} more cannot travel" if len(refused) > 1 else ""
        raise SpecError(f"model.{name}", problem + others, remedy)
    return tuple(sorted(places, key=lambda place: place.spec.name))


def _objection(tensor: Tensor, *, is_buffer: bool) -> tuple[str, str]:
    """Why a tensor cannot travel, and what to do: change it, or have it stay here."""
    stays = "register it with persistent=False" if is_buffer else "give it requires_grad_(False)"
    if tensor.layout != torch.strided:
        return f"is sparse ({tensor.layout})", f"make it dense by to_dense(), or {stays}"
    if tensor.is_complex():
        parts = "train its real and imaginary parts as float32 (torch.view_as_real)"
        return f"is {tensor.dtype}", f"{parts}, or {stays}"
    known = " or ".join(DTYPES)
    return f"is {tensor.dtype}, not {known}", f"make it float32, as model.float() does, or {stays}"


def candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor, bool]]:
    """(name, module, attribute, tensor, whether it is a buffer) of what may travel, each once."""
    seen, clean = set[int](), cleaner(model)
    for is_buffer in (False, True):
        for prefix, module in model.named_modules():
            own = module._buffers if is_buffer else module._parameters
            for attribute, tensor in own.items():
                if tensor is None or id(tensor) in seen:
                    continue
                wanted = tensor.requires_grad
                if is_buffer:
                    kept = attribute not in module._non_persistent_buffers_set
                    wanted = kept and tensor.is_floating_point() and _is_finite(tensor)
                if wanted and tensor.numel():
                    seen.add(id(tensor))
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    yield clean(name), module, attribute, tensor, is_buffer


def travelling_values(build: Callable[[], object]) -> int:
    """How many values of the model travel that `build` makes, on a device without memory.

    Raises SpecError for what is no model, and for one that has nothing that travels.
    """
    with torch.device("meta"):
        model = build()
    if not isinstance(model, nn.Module):
        problem = f"makes {type(model).__name__}, not a torch.nn.Module"
        raise SpecError("model", problem, "name a function that returns the model")
    return sum(math.prod(place.spec.shape) for place in travelling(model))


def _is_finite(tensor: Tensor) -> bool:
    if tensor.is_meta:
        return True  # it has no values
    values = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return bool(torch.isfinite(values).all())


def pairs(
    places: Sequence[TravellingTensor], wanted: Slice, region: Packed[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """For every piece, whole or some rows: a view of the parameter and an equal one of `region`."""
    found = []
    for piece in wanted.pieces:
        tensor = places[piece.tensor].tensor
        if piece.element_count < tensor.numel():
            row = tensor[0].numel()
            tensor = tensor[piece.start // row : piece.stop // row]
        part = region.part(range(piece.offset, piece.offset + piece.element_count))
        found.append((tensor, part.view(tensor.shape)))
    return found


def is_one(
    models: Sequence[nn.Module], places: Sequence[TravellingTensor], specs: Sequence[TensorSpec]
) -> bool:
    """Whether a rank has something of every tensor, and not a stage of a pipeline."""
    return len(models) == 1 and tuple(place.spec for place in places) == tuple(specs)


def device_of(places: Sequence[TravellingTensor]) -> torch.device:
    """The device of all tensors. Raises SpecError if they are on several."""
    devices = {place.tensor.device: place.spec.name for place in places}
    if len(devices) > 1:
        (first, one), (second, other), *_ = devices.items()
        problem = f"lies on several devices ({one} on {first}, {other} on {second})"
        raise SpecError("model", problem, "put one learner's model on one device")
    return next(iter(devices))
