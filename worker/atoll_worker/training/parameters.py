"""Which tensors of a model travel, how each is merged, and where a slice lies in them.

A tensor *travels* if the learners exchange it: it is part of offers and is overwritten by published
values. All processes of a job derive the same list from the same model, in the order of the names,
and from it the layout of fragments and slices (atoll_protos.layout).

    trainable parameter                travels; merged as spec.sync.merge says
    embedding, or a head tied to it    travels; plain mean, as published (arXiv 2604.21428)
    floating-point buffer              travels in f32 on any wire; plain mean, without the outer
                                       optimizer: a step of it would make a running variance
                                       negative; one that does not change keeps all of its bits
    buffer that is not finite          stays: a mask is a constant of the model
    frozen parameter                   stays: it is the same everywhere already; a stage of a
                                       pipeline may have nothing else
    integer, complex, unsaved buffer   stays: a mean of counters has no meaning
    tied parameter                     travels once, under its first name

Names are those of the state dict, without the parts of wrappers (naming.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from atoll_protos.codecs import Packed
from atoll_protos.errors import SpecError
from atoll_protos.layout import AVERAGE, Slice, TensorSpec
from atoll_protos.tensors import DTYPES
from atoll_worker.ranks.parts import untrained
from atoll_worker.training.naming import cleaner

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MATRIX_MERGE = "rda"
VECTOR_MERGE = "rda"  # tensors of 0 or 1 dimension (norms, biases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a travelling tensor lives.

    The module is kept, not the tensor: code may replace `module.weight` by another tensor of the
    same shape, and `tensor` then finds the new one.
    """

    module: nn.Module
    attribute: str
    spec: TensorSpec

    @property
    def tensor(self) -> Tensor:
        """The tensor as it is now, without autograd history."""
        return getattr(self.module, self.attribute).detach()  # type: ignore[no-any-return]


def travelling(model: nn.Module, mean_patterns: Sequence[str] = ()) -> tuple[Place, ...]:
    """Trainable parameters and floating-point buffers of the state dict, sorted by name.

    Raises SpecError as `travelling_of` does, and for a model without any: nothing would be trained.
    """
    places = travelling_of([model], mean_patterns)
    if not places:
        raise untrained()
    return places


def travelling_of(
    models: Sequence[nn.Module], mean_patterns: Sequence[str] = ()
) -> tuple[Place, ...]:
    """Those of all the parts of a model that this process has, one part after another.

    There are none in a stage of a pipeline that is frozen as a whole; another rank has some then.

    Tied weights come once; frozen parameters and integer buffers do not travel at all
    (docs/protocol.md, rule 18). Merged by the plain mean are embeddings, heads tied to them, and
    names that match one of `mean_patterns` (shell globs); all else is merged as `spec.sync.merge`
    says. Buffers take the average itself, without the outer optimizer.

    Raises SpecError for tensors that cannot travel (of another dtype, sparse, without a shape yet),
    and for a model on several devices.
    """
    places = tuple(place for model in models for place in _of_part(model, mean_patterns))
    if places:
        device_of(places)
    return places


def _of_part(model: nn.Module, mean_patterns: Sequence[str]) -> tuple[Place, ...]:
    embeddings = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    places: list[Place] = []
    refused: list[tuple[str, str, str]] = []  # name, problem, remedy
    for name, module, attribute, tensor, is_buffer in candidates(model):
        by_mean = id(tensor) in embeddings or any(
            fnmatchcase(name, pattern) for pattern in mean_patterns
        )
        merge = "mean" if by_mean else MATRIX_MERGE if tensor.ndim > 1 else VECTOR_MERGE
        merge = AVERAGE if is_buffer else merge
        if tensor.dtype not in DTYPE_NAMES or tensor.layout != torch.strided:
            refused.append((name, *_objection(tensor, is_buffer=is_buffer)))
            continue
        shape = tuple(tensor.shape)
        spec = TensorSpec(name=name, shape=shape, dtype=DTYPE_NAMES[tensor.dtype], merge=merge)
        places.append(Place(module=module, attribute=attribute, spec=spec))
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
                if is_lazy(tensor):
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    remedy = "run one batch through the model before the Learner is opened"
                    raise SpecError(f"model.{name}", "has no shape yet, in a lazy module", remedy)
                if not tensor.numel():
                    continue
                if is_buffer:
                    kept = attribute not in module._non_persistent_buffers_set
                    wanted = kept and tensor.is_floating_point() and _is_finite(tensor)
                else:
                    wanted = tensor.requires_grad
                if wanted:
                    seen.add(id(tensor))
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    yield clean(name), module, attribute, tensor, is_buffer


def _is_finite(tensor: Tensor) -> bool:
    values = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return bool(torch.isfinite(values).all())


def pairs(
    places: Sequence[Place], wanted: Slice, region: Packed[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """For every piece of a slice: a view of the parameter, and a view of `region` of equal shape.

    `region` holds the slice's values. A piece is a whole tensor or some of its rows, so parameters
    need not be contiguous.
    """
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
    models: Sequence[nn.Module], places: Sequence[Place], specs: Sequence[TensorSpec]
) -> bool:
    """Whether a rank has something of every tensor, and not a stage of a pipeline."""
    return len(models) == 1 and tuple(place.spec for place in places) == tuple(specs)


def device_of(places: Sequence[Place]) -> torch.device:
    """The device of all tensors, of which there are some.

    Raises SpecError, naming two tensors, if they are on several.
    """
    devices = {place.tensor.device: place.spec.name for place in places}
    if len(devices) > 1:
        (first, one), (second, other), *_ = devices.items()
        raise SpecError(
            "model",
            f"lies on several devices ({one} on {first}, {other} on {second})",
            "put one learner's model on one device",
        )
    return next(iter(devices))
