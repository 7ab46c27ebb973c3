"""What an export needs beside the values that travel: made here, where the model is (rule 36).

The shards hold the values of the tensors that travel, and nothing else of the model. The registrar
asks one learner for the rest once the values have begun, and every learner at the end for what
training has changed of it. `atoll_protos.companion` describes the bytes; this module makes them:

- the *table*: under which keys of the model's state dict each travelling tensor stands (a tied
  weight under several), and which keys are absent, with the reason;
- the tensors of the state dict that do not travel: frozen parameters, integer and bool buffers,
  masks with -inf. Of a model with an adapter (PEFT) only the adapter's: the base is not shipped;
- small files: config.json, a tokenizer (model_files.py).

Of a model that is cut over several ranks the head reads the whole tensors, one at a time
(ranks/reading.py), so that the companion and the digest are those of the model, however it is cut.

They are written behind the regions of the shared memory's file, from where the transport sends
them part by part. Values are read from the device in pieces of CHUNK_BYTES.

The frozen digest
-----------------
Frozen parameters are not exchanged, so nothing would ever make them equal, and learners with
different bases would train against each other in silence. `frozen_digest` is a checksum of them in
the order of their names, which every Join carries (rule 3). It is computed once, at the opening.
Of a quantised parameter, whose class says of which tensors it is made, these are read. Buffers are
not in it: counters differ by right.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeGuard

import torch
import xxhash
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from atoll_protos.companion import (
    ADAPTER,
    BYTES_MAX,
    CHANGED_BYTES_MAX,
    FILE,
    METADATA,
    MODEL,
    TENSOR,
    Table,
)
from atoll_protos.frames import Buffer
from atoll_protos.tensors import SAFETENSORS, byte_view
from atoll_worker.ranks.boxes import is_distributed
from atoll_worker.ranks.reading import Reader
from atoll_worker.training.model_files import adapter_of, adapter_state, model_files
from atoll_worker.training.naming import (
    cleaner,
    same_memory,
    shortened,
    state_of,
    unwrapped,
    without_hooks,
)
from atoll_worker.training.parameters import Place

CHUNK_BYTES = 64 << 20
HEADER_ROOM_BYTES = 1 << 20  # of the bound, for the header
ALIGNMENT = 64
PLAIN = (Tensor, nn.Parameter)
PLAIN_READER = Reader()  # of a model that this process has whole
NO_BYTES = (RuntimeError, TypeError, AttributeError)  # what a subclass of Tensor may raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The export of a model as it is now; `kept` are the tensors that do not travel, by key."""

    table: Table
    kept: Mapping[str, Tensor]


@dataclass(slots=True, kw_only=True)
class Companion:
    """The companion of one model; `digests` are those of the kept tensors at the opening."""

    model: nn.Module
    places: Sequence[Place]
    adapter: str
    files: Mapping[str, bytes]
    frozen_digest: str
    digests: dict[str, int] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    unread: Sequence[str] = ()  # frozen parameters that are not in the digest
    stale: Sequence[str] = ()  # keys whose first values stay in the export, known at the end

    @property
    def warning(self) -> str:
        """What the export will lack, and the digest, in words; empty if nothing."""
        if self.stale:
            return (
                "the export has the first values of tensors that training has changed and that do"
                f" not travel: {shortened(self.stale)}"
            )
        named = [f"{key} ({why})" for key, why in self.absent.items()]
        lacks = f"the export will lack tensors of the model: {shortened(named)}" if named else ""
        unread = (
            "whether these frozen parameters are the same in all learners is not known, since "
            f"their values cannot be read: {shortened(self.unread)}"
            if self.unread
            else ""
        )
        return "; ".join(filter(None, (lacks, unread)))

    def write(
        self, descriptor: int, offset: int, *, changed: bool, reader: Reader = PLAIN_READER
    ) -> int:
        """Write it into a file from `offset` on; returns the number of bytes.

        `changed`: only the tensors that training has changed since the opening.
        """
        described = describe(self.model, self.places, self.adapter, reader)
        kept, files = described.kept, self.files
        if changed:
            kept, files = self._changed(kept, reader), {}
        table = Table(stem=described.table.stem) if changed else described.table
        payloads: dict[str, tuple[str, Sequence[int], Iterable[Buffer]]] = {
            **{f"{FILE}{n}": ("U8", (len(each),), (each,)) for n, each in files.items()},
            **{
                f"{TENSOR}{key}": (
                    SAFETENSORS[each.dtype],
                    tuple(each.shape),
                    _chunks(each, reader),
                )
                for key, each in kept.items()
            },
        }
        header = _header(payloads, table)
        position = offset + _write(descriptor, header, offset)
        for _, _, chunks in payloads.values():
            for chunk in chunks:
                position += _write(descriptor, chunk, position)
        return position - offset

    def _changed(self, kept: Mapping[str, Tensor], reader: Reader) -> dict[str, Tensor]:
        """Those whose bytes are others now, the smallest first, as far as they may be sent."""
        found: dict[str, Tensor] = {}
        room = CHANGED_BYTES_MAX - HEADER_ROOM_BYTES
        left: list[str] = []
        for key, tensor in sorted(kept.items(), key=lambda item: (item[1].nbytes, item[0])):
            if self.digests.get(key) == checksum(reader.whole(tensor)):
                continue
            room -= tensor.nbytes
            if room >= 0:
                found[key] = tensor
            else:
                left.append(key)
        self.stale = left
        return found


def companion_of(
    model: nn.Module,
    places: Sequence[Place],
    export_files: Sequence[object] = (),
    reader: Reader = PLAIN_READER,
) -> Companion:
    """Look at a model that is about to be trained; `reader` where it is cut over several ranks.

    Raises SpecError for `export_files` that are no files.
    """
    bare = unwrapped(model)
    adapter = adapter_of(bare)
    described = describe(model, places, adapter, reader)
    checksums = Checksums(reader)
    return Companion(
        model=model,
        places=places,
        adapter=adapter,
        files=model_files(bare, adapter, export_files),
        frozen_digest=frozen_digest(model, checksums),
        digests={key: checksums.of(tensor) for key, tensor in described.kept.items()},
        absent=described.table.absent,
        unread=[name for name, each in frozen_of(model).items() if not _is_read(each, reader)],
    )


def describe(
    model: nn.Module, places: Sequence[Place], adapter: str, reader: Reader = PLAIN_READER
) -> Described:
    """Which tensors the export has, under which keys, and which ones it must lack."""
    names = {place.spec.name for place in places}
    by_memory = {same_memory(place.tensor): place.spec.name for place in places}
    state = _state(model, places, adapter, reader)
    keys: dict[str, str] = {}
    absent: dict[str, str] = {}
    kept: dict[str, Tensor] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            absent[key] = "is no tensor"
        elif key in names:
            keys[key] = key
        elif reason := _why_not(value, reader):
            absent[key] = reason
        elif value.numel() and same_memory(value) in by_memory:
            keys[key] = by_memory[same_memory(value)]
        else:
            kept[key] = value.detach()
    room = BYTES_MAX - HEADER_ROOM_BYTES
    for key in sorted(kept, key=lambda each: (kept[each].nbytes, each)):
        room -= kept[key].nbytes
        if room < 0:
            absent[key] = f"all that does not travel has more than {BYTES_MAX >> 30} GiB"
            del kept[key]
    table = Table(stem=ADAPTER if adapter else MODEL, keys=keys, absent=absent)
    return Described(table=table, kept=kept)


def _state(
    model: nn.Module, places: Sequence[Place], adapter: str, reader: Reader
) -> Mapping[str, object]:
    """The state dict, or the adapter's part of it, with the tensors that travel."""

    def read() -> Mapping[str, object]:
        return adapter_state(unwrapped(model), adapter) if adapter else state_of(model)

    if not reader.cuts:
        state = read()
        found = {same_memory(each) for each in state.values() if _has_memory(each)}
        if all(place.spec.name in state or same_memory(place.tensor) in found for place in places):
            return state
    with without_hooks(model):
        return read()


def _has_memory(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor with values of its own in a piece of memory."""
    if not isinstance(value, Tensor) or value.is_meta or value.layout is not torch.strided:
        return False
    return not is_traceable_wrapper_subclass(value)


def _why_not(tensor: Tensor, reader: Reader) -> str:
    """Why a tensor cannot be in a safetensors file; empty when it can."""
    if tensor.is_meta:
        return "has no values (meta device)"
    if tensor.layout is not torch.strided:
        return f"is {tensor.layout}"
    if tensor.dtype not in SAFETENSORS:
        return f"is {tensor.dtype}"
    if is_distributed(tensor):
        return "" if reader.knows(tensor) else "is a DTensor that is no parameter or buffer"
    return "" if _bytes_of(tensor) is not None else f"is a {type(tensor).__name__}"


class Checksums:
    """Of tensors as they are now; each is read once, under whatever names it has."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[tuple[object, ...], int] = {}

    def of(self, tensor: Tensor) -> int:
        """See `checksum`."""
        if tensor.layout is not torch.strided:  # it has no memory of its own: its parts have
            return checksum(tensor.to_dense())
        if is_distributed(tensor):
            return self._once(tensor)
        if is_traceable_wrapper_subclass(tensor):  # likewise
            digest = xxhash.xxh3_64()
            for part in _parts_of(tensor):
                digest.update(self.of(part).to_bytes(8))
            return digest.intdigest()
        return self._once(tensor)

    def _once(self, tensor: Tensor) -> int:
        place = same_memory(tensor.detach())
        if place not in self._known:
            self._known[place] = checksum(self._reader.whole(tensor))
        return self._known[place]


def frozen_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """All frozen parameters, by name."""
    clean = cleaner(model)
    named = model.named_parameters()
    return {clean(name): each for name, each in named if not each.requires_grad}


def frozen_digest(model: nn.Module, checksums: Checksums) -> str:
    """The checksum of all frozen parameters, in the order of their names; hexadecimal."""
    digest = xxhash.xxh3_128()
    for name, parameter in sorted(frozen_of(model).items()):
        each = name, str(parameter.dtype), list(parameter.shape), checksums.of(parameter)
        digest.update(json.dumps(each).encode())
    return digest.hexdigest()


def checksum(tensor: Tensor) -> int:
    """Of the values' bytes."""
    digest = xxhash.xxh3_64()
    for chunk in host_chunks(tensor):
        digest.update(chunk)
    return digest.intdigest()


def host_chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in order, in pieces of CHUNK_BYTES; none of one without plain bytes."""
    if tensor.is_meta or not tensor.numel():
        return
    flat = _bytes_of(tensor)
    if flat is None:
        return
    for start in range(0, flat.numel(), CHUNK_BYTES):
        yield byte_view(flat[start : start + CHUNK_BYTES].cpu())


def _chunks(tensor: Tensor, reader: Reader) -> Iterator[memoryview]:
    """`host_chunks` of a tensor that is put together only when its turn comes."""
    yield from host_chunks(reader.whole(tensor))


def _bytes_of(tensor: Tensor) -> Tensor | None:
    """A tensor's values as uint8 [n]; None for a subclass without plain bytes.

    They are on its device if they lie there in order, else on the host.
    """
    if type(tensor) in PLAIN:
        return _flat(tensor)
    try:
        return _flat(tensor)
    except torch.OutOfMemoryError:  # a RuntimeError too, and no answer
        raise
    except NO_BYTES:
        return None


def _flat(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    in_order = plain if plain.is_contiguous() else plain.cpu().contiguous()
    return in_order.reshape(-1).view(torch.uint8)


def _parts_of(tensor: Tensor) -> list[Tensor]:
    """The tensors of which a quantised one is made."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return [getattr(tensor, name) for name in names]


def _is_read(tensor: Tensor, reader: Reader) -> bool:
    """Whether the values of a frozen parameter are in its checksum."""
    if tensor.layout is not torch.strided:
        return True
    if is_distributed(tensor):
        return reader.knows(tensor)
    if is_traceable_wrapper_subclass(tensor):
        return all(_is_read(part, reader) for part in _parts_of(tensor))
    return _bytes_of(tensor) is not None


def _header(
    payloads: Mapping[str, tuple[str, Sequence[int], Iterable[Buffer]]], table: Table
) -> bytes:
    """The head of a safetensors file: its length in 8 bytes, then JSON."""
    header: dict[str, object] = {"__metadata__": {METADATA: table.to_json()}}
    sizes = {name: each for each, name in SAFETENSORS.items()}
    stop = 0
    for name, (dtype, shape, _) in payloads.items():
        start, stop = stop, stop + prod(shape) * sizes[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _write(descriptor: int, data: Buffer, position: int) -> int:
    """Write all of it; returns how much that was."""
    view = memoryview(data).cast("B")
    written = 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], position + written)
    return written
