"""Which tensors an export has, under which keys, on all ranks of a learner together.

Each rank looks at the modules that it has: the whole model, or a stage of a pipeline, and
`describe` puts together what all of them have. Of a key the lowest rank that has it decides; for
what the head does not have it gets a stand-in, which its Reader can read. In a process that has the
whole model this is what the process sees itself.

Where any part has an adapter (PEFT), the export is an adapter. A part without one, such as a frozen
stage, then has nothing in it but what travels: its frozen tensors are of the base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from atoll_protos.companion import ADAPTER, BYTES_MAX, MODEL, Table
from atoll_protos.tensors import SAFETENSORS
from atoll_worker.ranks.boxes import is_distributed
from atoll_worker.ranks.reading import Reader
from atoll_worker.training.checksums import PLAIN_READER, Checksums, bytes_of
from atoll_worker.training.model_files import adapter_state, model_files
from atoll_worker.training.naming import cleaner, same_memory, state_of, unwrapped, without_hooks
from atoll_worker.training.parameters import Place

HEADER_ROOM_BYTES = 1 << 20  # of the bound, for the header


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The export of a model as it is now; `kept` are the tensors that do not travel, by key.

    `frozen` are all frozen parameters, by name; `config` are the small files of the adapter.
    """

    table: Table
    kept: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor]
    config: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Found:
    """What has been found, as in Described; for `base` and `config` see Share."""

    keys: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)
    frozen: dict[str, Tensor] = field(default_factory=dict)
    base: set[str] = field(default_factory=set)
    config: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank has of it; `kept` and `frozen` by the names that its Reader says.

    `base` are the keys that an adapter's export leaves out: of parts without one, and of tensors
    that do not travel. `config` are the files of the rank's adapter; None if it has no adapter.
    """

    keys: Mapping[str, str]
    absent: Mapping[str, str]
    kept: Mapping[str, str]
    frozen: tuple[str, ...]
    base: frozenset[str]
    config: Mapping[str, bytes] | None


def describe(
    models: Sequence[nn.Module],
    places: Sequence[Place],
    adapters: Sequence[str],
    reader: Reader = PLAIN_READER,
) -> Described:
    """Which tensors the export has, under which keys, and which ones it must lack.

    `adapters` are the names of the models' adapters, empty where one has none. Collective where
    there are several ranks; only the head's is that of the whole model.
    """
    found = Found()
    keys, absent, kept = found.keys, found.absent, found.kept
    names = {place.spec.name for place in places}
    by_memory = {same_memory(place.tensor): place.spec.name for place in places}
    for model, adapter in zip(models, adapters, strict=True):
        found.frozen |= frozen_of(model)
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
    if any(adapters):
        found.config = _config_of(models, adapters)
    if not reader.alone:
        found = _joined(found, reader)
    kept, absent = found.kept, found.absent
    room = BYTES_MAX - HEADER_ROOM_BYTES
    for key in sorted(kept, key=lambda each: (kept[each].nbytes, each)):
        room -= kept[key].nbytes
        if room < 0:
            absent[key] = f"all that does not travel has more than {BYTES_MAX >> 30} GiB"
            del kept[key]
    stem = MODEL if found.config is None else ADAPTER
    table = Table(stem=stem, keys=found.keys, absent=absent)
    return Described(table=table, kept=kept, frozen=found.frozen, config=found.config or {})


def _state(
    model: nn.Module, places: Sequence[Place], adapter: str, reader: Reader
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
    """Whether it is a tensor with values of its own in a piece of memory."""
    if not isinstance(value, Tensor) or value.is_meta or value.layout is not torch.strided:
        return False
    return not is_traceable_wrapper_subclass(value)


def _config_of(models: Sequence[nn.Module], adapters: Sequence[str]) -> Mapping[str, bytes]:
    """The small files of the first adapter."""
    model, adapter = next(each for each in zip(models, adapters, strict=True) if each[1])
    return model_files(unwrapped(model), adapter, ())


def _joined(mine: Found, reader: Reader) -> Found:
    """What all ranks have, on the head; collective."""
    named, more = {}, {}
    for key, tensor in mine.kept.items():
        known = reader.tensors.get(key)
        named[key] = key
        if known is None or same_memory(known.detach()) != same_memory(tensor):
            named[key] = f"state_dict()[{key}]"  # made by a hook of the user's
            more[named[key]] = tensor
    said = Share(
        keys=mine.keys,
        absent=mine.absent,
        kept=named,
        frozen=tuple(mine.frozen),
        base=frozenset(mine.base),
        config=mine.config,
    )
    everybody = reader.agree(more, said, checksum=Checksums(PLAIN_READER).of)
    if not reader.is_head:
        return mine
    found = Found(config=next((each.config for each in everybody if each.config), mine.config))
    for share in everybody:
        left_out = share.base if found.config is not None else frozenset[str]()
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


def frozen_of(model: nn.Module) -> dict[str, Tensor]:
    """All frozen parameters of a module, by name."""
    clean = cleaner(model)
    named = model.named_parameters()
    return {clean(name): each for name, each in named if not each.requires_grad}
