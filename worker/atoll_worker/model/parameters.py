"""Which tensors of a model travel, how each is merged, and where a slice lies in them (rule 18).

A tensor *travels* if the learners exchange it. All processes of a job derive the same list from the
same model, in the order of the names, and from it the layout of fragments and slices. Beside what
the rule names, complex and unsaved buffers stay; the plain mean of embeddings and of heads tied to
them is as published (arXiv 2604.21428).

Names are those of the bare model's state dict. A wrapper (torch.compile, activation checkpointing,
FSDP, DistributedDataParallel) keeps the user's module in an attribute of its own, which would
become a part of every name: a learner with activation checkpointing could not join one without.

Every Join carries a digest of the frozen parameters, which nothing would ever make equal in all
learners (rule 3). Of a model on several ranks the lowest rank that has a parameter, its *giver*,
sums it, so that the digest does not depend on how the model is cut. Ranks put a parameter together
(`full_tensor`) in the order of the names, so at most one is whole at a time.
"""

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

import torch
import xxhash
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import AVERAGE, Slice, TensorSpec
from atoll_protos.transfer.codecs import Form, Packed
from atoll_worker.ranks.redistribution import (
    TravellingTensor,
    is_distributed,
    reshard,
    sharded_modules,
    untrained,
)

WRAPPING = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)
PARALLEL_CHILD = "module"


def cleaner(model: nn.Module) -> Callable[[str], str]:
    """Return a function that takes the wrappers' parts out of a name in `model`."""
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


def shortened(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


FLOATS: Final[Mapping[pb.Encoding, torch.dtype]] = {
    pb.F32: torch.float32,
    pb.BF16: torch.bfloat16,
}
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def byte_view(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor as a view, which keeps the tensor alive."""
    assert tensor.is_contiguous(), tensor.shape
    assert tensor.device.type == "cpu", tensor.device
    byte_count = tensor.numel() * tensor.element_size()
    if byte_count == 0:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * byte_count).from_address(tensor.data_ptr())
    memory.owner = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def from_bytes(data: bytearray | memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over writable bytes, without a copy: shape [n] of `dtype`."""
    return torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)


def packed(data: bytearray | memoryview, encoding: pb.Encoding, form: Form) -> Packed[torch.Tensor]:
    """Return the whole values of a slice over its writable bytes, without a copy: F32 or BF16."""
    exact, coded = form.cut(data)
    return Packed(
        form=form,
        data=memoryview(data),
        exact=from_bytes(exact, torch.float32),
        coded=from_bytes(coded, FLOATS[encoding]),
    )


DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def travelling(model: nn.Module, mean_patterns: Sequence[str] = ()) -> tuple[TravellingTensor, ...]:
    """Return what `travelling_of` has of one model; SpecError also for one that has nothing."""
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
        by_mean = id(tensor) in embeddings or any(
            fnmatchcase(name, pattern) for pattern in mean_patterns
        )
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
    """Return the device of all tensors. Raises SpecError if they are on several."""
    devices = {place.tensor.device: place.spec.name for place in places}
    if len(devices) > 1:
        (first, one), (second, other), *_ = devices.items()
        problem = f"lies on several devices ({one} on {first}, {other} on {second})"
        raise SpecError("model", problem, "put one learner's model on one device")
    return next(iter(devices))


CHUNK_BYTES = 64 << 20
PLAIN = (Tensor, nn.Parameter)
NO_BYTES = (RuntimeError, TypeError, AttributeError)  # what a subclass of Tensor may raise


def checksum(tensor: Tensor) -> int:
    """Of its values; of a tensor without plain bytes a number that says nothing (`is_read`)."""
    if tensor.layout is not torch.strided:  # it has no memory of its own: its parts have
        return checksum(tensor.to_dense())
    digest = xxhash.xxh3_64()
    if is_traceable_wrapper_subclass(tensor):  # likewise
        for part in _parts_of(tensor):
            digest.update(checksum(part).to_bytes(8))
        return digest.intdigest()
    for chunk in _host_chunks(tensor):
        digest.update(chunk)
    return digest.intdigest()


def is_read(tensor: Tensor) -> bool:
    """Whether the values of a tensor are in its checksum."""
    if tensor.layout is not torch.strided:
        return True
    if is_traceable_wrapper_subclass(tensor):
        return all(is_read(part) for part in _parts_of(tensor))
    return _bytes_of(tensor) is not None


def _host_chunks(tensor: Tensor) -> Iterator[memoryview]:
    """Yield a tensor's bytes in pieces of CHUNK_BYTES; nothing of one without plain bytes."""
    if tensor.is_meta or not tensor.numel():
        return
    flat = _bytes_of(tensor)
    if flat is None:
        return
    for start in range(0, flat.numel(), CHUNK_BYTES):
        yield byte_view(flat[start : start + CHUNK_BYTES].cpu())


def _bytes_of(tensor: Tensor) -> Tensor | None:
    """Its values as uint8 [n], in place if they lie in order; None of one without plain bytes."""
    try:
        return _flat(tensor)
    except NO_BYTES as error:
        if type(tensor) in PLAIN or isinstance(error, torch.OutOfMemoryError):
            raise
        return None


def _flat(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    in_order = plain if plain.is_contiguous() else plain.cpu().contiguous()
    return in_order.reshape(-1).view(torch.uint8)


def _parts_of(tensor: Tensor) -> list[Tensor]:
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return [getattr(tensor, name) for name in names]


Gather: TypeAlias = Callable[[Callable[[], Any]], list[Any]]  # what it returns on every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenDigest:
    """`unread` are the names of parameters whose values cannot be read, so are not in it."""

    digest: str
    unread: tuple[str, ...]

    @property
    def warning(self) -> str:
        if not self.unread:
            return ""
        return (
            "whether these frozen parameters are the same in all learners is not known, since "
            f"their values cannot be read: {shortened(self.unread)}"
        )


def _alone(make: Callable[[], Any]) -> list[Any]:
    return [make()]


@torch.no_grad()
def frozen_digest(
    models: Sequence[nn.Module], gather: Gather = _alone, rank: int = 0
) -> FrozenDigest:
    """Raise SpecError, on every rank, for a parameter that only some have cut. Collective."""
    reshard(sharded_modules(models))
    mine: dict[str, Any] = {}
    for model in models:
        clean = cleaner(model)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                mine.setdefault(clean(name), parameter)
    givers = _givers(gather(lambda: {name: is_distributed(each) for name, each in mine.items()}))
    summed: dict[str, tuple[str, list[int], int, bool]] = {}
    for name, parameter in sorted(mine.items()):
        values: Tensor = parameter.detach()
        if is_distributed(values):
            values = parameter.detach().full_tensor()
        if givers[name] == rank:
            shape = list(parameter.shape)
            summed[name] = str(parameter.dtype), shape, checksum(values), is_read(values)
    everything = {
        name: entry for theirs in gather(lambda: summed) for name, entry in theirs.items()
    }
    digest = xxhash.xxh3_128()
    for name, (dtype, shape, number, _) in sorted(everything.items()):
        digest.update(json.dumps([name, dtype, list(shape), number]).encode())
    unread = tuple(sorted(name for name, entry in everything.items() if not entry[-1]))
    return FrozenDigest(digest=digest.hexdigest(), unread=unread)


def _givers(cuts: Sequence[dict[str, bool]]) -> dict[str, int]:
    """By name the lowest rank that has it."""
    givers: dict[str, int] = {}
    for rank, theirs in enumerate(cuts):
        for name, cut in theirs.items():
            giver = givers.setdefault(name, rank)
            if cuts[giver][name] != cut:
                problem = f"is a DTensor on only one of the ranks {giver} and {rank}"
                remedy = "shard the model in the same way on every rank"
                raise SpecError(f"model.{name}", problem, remedy)
    return givers
