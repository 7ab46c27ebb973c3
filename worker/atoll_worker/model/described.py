"""Which tensors an export has, under which keys, on all ranks of a learner together.

Each rank looks at the modules that it has (the whole model, or a stage of a pipeline), and
`describe` puts this together. Of a key the lowest rank that has it decides; for what rank 0 does
not have it gets a stand-in, which its Reader can read.

Where any part has an adapter (PEFT), the export is an adapter. A part without one, such as a frozen
stage, then has nothing in it but what travels: its frozen tensors are of the base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from atoll_protos.job.companion import ADAPTER, BYTES_MAX, MODEL, ExportTable
from atoll_worker.model.model_files import adapter_state, model_files
from atoll_worker.model.naming import cleaner, same_memory, state_of, unwrapped, without_hooks
from atoll_worker.model.tensor_sums import PLAIN_READER, Checksums, bytes_of
from atoll_worker.model.tensors import SAFETENSORS
from atoll_worker.ranks.boxes import TravellingTensor, is_distributed
from atoll_worker.ranks.whole_tensors import Reader

HEADER_ROOM_BYTES = 1 << 20  # of the bound, for the header
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Described(Generic[T]):
    """The export of a model as it is now: tensors; between ranks their names in the readers.

    `base` are the keys that an adapter's export leaves out: of parts without one, and of tensors
    that do not travel. `config`: the files of the adapter, None without one.
    """

    keys: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    kept: dict[str, T] = field(default_factory=dict)  # by key: what does not travel
    frozen: dict[str, T] = field(default_factory=dict)  # all frozen parameters, by name
    base: set[str] = field(default_factory=set)
    config: Mapping[str, bytes] | None = None

    @property
    def table(self) -> ExportTable:
        stem = MODEL if self.config is None else ADAPTER
        return ExportTable(stem=stem, keys=self.keys, absent=self.absent)


def describe(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    adapters: Sequence[str],
    reader: Reader = PLAIN_READER,
) -> Described[Tensor]:
    """Collective: the head's is of all ranks. Of `adapters` one is empty where a model has none."""
    found = Described[Tensor]()
    keys, absent, kept = found.keys, found.absent, found.kept
    names = {place.spec.name for place in places}
    by_memory = {same_memory(place.tensor): place.spec.name for place in places}
    for model, adapter in zip(models, adapters, strict=True):
        named, clean = model.named_parameters(), cleaner(model)
        found.frozen |= {clean(name): each for name, each in named if not each.requires_grad}
        known = keys.keys() | kept.keys() | absent.keys()
        for key, value in _state(model, places, adapter, reader).items():
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
        if not adapter:
            found.base |= (kept.keys() | absent.keys()) - known
        elif found.config is None:
            found.config = model_files(unwrapped(model), adapter, ())
    if not reader.alone:
        found = _joined(found, reader)
    kept, absent = found.kept, found.absent
    room = BYTES_MAX - HEADER_ROOM_BYTES
    for key in sorted(kept, key=lambda each: (kept[each].nbytes, each)):
        room -= kept[key].nbytes
        if room < 0:
            absent[key] = f"all that does not travel has more than {BYTES_MAX >> 30} GiB"
            del kept[key]
    return found


def _state(
    model: nn.Module, places: Sequence[TravellingTensor], adapter: str, reader: Reader
) -> Mapping[str, object]:
    """The state dict, or the adapter's part of it, with the tensors that travel."""

    def read() -> Mapping[str, object]:
        return adapter_state(unwrapped(model), adapter) if adapter else state_of(model)

    if not reader.cuts:
        modules = {id(module) for module in model.modules()}
        own = [place for place in places if id(place.module) in modules]
        state = read()
        found = {same_memory(each) for each in state.values() if _has_memory(each)}
        if all(place.spec.name in state or same_memory(place.tensor) in found for place in own):
            return state
    with without_hooks(model):
        return read()


def _has_memory(value: object) -> TypeGuard[Tensor]:
    if not isinstance(value, Tensor) or value.is_meta or value.layout is not torch.strided:
        return False
    return not is_traceable_wrapper_subclass(value)


def _joined(mine: Described[Tensor], reader: Reader) -> Described[Tensor]:
    """What all ranks have, on the head; collective."""
    named, more = {}, {}
    for key, tensor in mine.kept.items():
        known = reader.tensors.get(key)
        named[key] = key
        if known is None or same_memory(known.detach()) != same_memory(tensor):
            named[key] = f"state_dict()[{key}]"  # made by a hook of the user's
            more[named[key]] = tensor
    frozen = {name: name for name in mine.frozen}
    said = Described[str](keys=mine.keys, absent=mine.absent, kept=named, frozen=frozen)
    said.base, said.config = mine.base, mine.config
    everybody = reader.agree(more, said, checksum=Checksums(PLAIN_READER).of)
    if not reader.is_head:
        return mine
    config = next((each.config for each in everybody if each.config), mine.config)
    found = Described[Tensor](config=config)
    for share in everybody:
        left_out = share.base if found.config is not None else set[str]()
        new = share.keys.keys() | share.kept.keys()
        new -= found.keys.keys() | found.kept.keys() | left_out
        found.keys |= {key: name for key, name in share.keys.items() if key in new}
        found.kept |= {key: reader.tensors[n] for key, n in share.kept.items() if key in new}
        for key, why in share.absent.items():
            if key not in left_out:
                found.absent.setdefault(key, why)
        for name in share.frozen:
            found.frozen.setdefault(name, reader.tensors[name])
    for key in found.keys.keys() | found.kept.keys():
        found.absent.pop(key, None)
    return found


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
    return "" if bytes_of(tensor) is not None else f"is a {type(tensor).__name__}"
