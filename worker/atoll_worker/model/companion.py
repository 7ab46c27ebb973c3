"""What an export needs beside the values that travel: made here, where the model is (rule 36).

`atoll_protos.job.companion` describes the bytes: the table of keys under which travelling tensors
stand (a tied weight under several) or are absent; the tensors that do not travel, of a model with
an adapter (PEFT) only the adapter's; and small files (model_files.py).

Of a model on several ranks the head makes all of it (described.py, ranks/whole_tensors.py), so that
companion and digest do not depend on how it is cut. They are written behind the regions of the
shared memory's file, from where the transport sends them part by part.

Every Join carries `frozen_digest` of the frozen parameters, which nothing would ever make equal
(rule 36). Buffers are not in it: counters differ by right.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import xxhash
from torch import Tensor, nn

from atoll_protos.job.companion import (
    CHANGED_BYTES_MAX,
    FILE,
    METADATA,
    TENSOR,
    ExportTable,
    check_files,
)
from atoll_protos.transfer.frames import Buffer
from atoll_worker.model.described import HEADER_ROOM_BYTES, describe
from atoll_worker.model.model_files import adapter_of, model_files
from atoll_worker.model.naming import shortened, unwrapped
from atoll_worker.model.tensor_sums import PLAIN_READER, Checksums, host_chunks, is_read
from atoll_worker.model.tensors import SAFETENSORS
from atoll_worker.ranks.boxes import TravellingTensor
from atoll_worker.ranks.whole_tensors import Reader

ALIGNMENT = 64
Payload = tuple[str, Sequence[int], Iterable[Buffer]]  # dtype, shape, bytes


@dataclass(slots=True, kw_only=True)
class Companion:
    """The companion of one model; `digests` are those of the kept tensors at the opening."""

    models: Sequence[nn.Module]  # of this process
    places: Sequence[TravellingTensor]
    adapters: Sequence[str]  # of the models; empty where one has none
    files: Mapping[str, bytes]
    frozen_digest: str
    digests: dict[str, int] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    unread: Sequence[str] = ()  # frozen parameters that are not in the digest
    stale: list[str] = field(default_factory=list)  # keys that the export has the first values of

    @property
    def warning(self) -> str:
        """What the export will lack, and the digest, in words; empty if nothing."""
        if self.stale:
            return (
                "the export has the first values of tensors that training has changed and that do"
                f" not travel: {shortened(self.stale)}"
            )
        found = []
        if named := [f"{key} ({why})" for key, why in self.absent.items()]:
            found.append(f"the export will lack tensors of the model: {shortened(named)}")
        if self.unread:
            found.append(
                "whether these frozen parameters are the same in all learners is not known, since "
                f"their values cannot be read: {shortened(self.unread)}"
            )
        return "; ".join(found)

    def write(
        self, descriptor: int, offset: int, *, changed: bool, reader: Reader = PLAIN_READER
    ) -> int:
        """Write all of it, or what training has `changed`; returns the number of bytes."""
        described = describe(self.models, self.places, self.adapters, reader)
        kept, files = described.kept, self.files
        if changed:
            kept, files = self._changed(kept, reader), {}
        table = ExportTable(stem=described.table.stem) if changed else described.table
        payloads: dict[str, Payload] = {
            f"{FILE}{name}": ("U8", (len(each),), (each,)) for name, each in files.items()
        }
        for key, each in kept.items():
            own = SAFETENSORS[each.dtype], tuple(each.shape), _chunks(each, reader)
            payloads[f"{TENSOR}{key}"] = own
        header = _header(payloads, table)
        position = offset + _write(descriptor, header, offset)
        for _, _, chunks in payloads.values():
            for chunk in chunks:
                position += _write(descriptor, chunk, position)
        return position - offset

    def _changed(self, kept: Mapping[str, Tensor], reader: Reader) -> dict[str, Tensor]:
        """Those whose bytes are others now, the smallest first, as far as they may be sent."""
        room, checksums = CHANGED_BYTES_MAX - HEADER_ROOM_BYTES, Checksums(reader)
        found, self.stale = dict[str, Tensor](), list[str]()
        for key, tensor in sorted(kept.items(), key=lambda item: (item[1].nbytes, item[0])):
            if self.digests.get(key) != checksums.of(tensor):
                room -= tensor.nbytes
                if room >= 0:
                    found[key] = tensor
                else:
                    self.stale.append(key)
        return found


def companion_of(
    models: Sequence[nn.Module],
    places: Sequence[TravellingTensor],
    export_files: Sequence[object] = (),
    reader: Reader = PLAIN_READER,
) -> Companion:
    """On several ranks `reader` is the head's; the others `lend`. SpecError for `export_files`."""
    adapters = adapters_of(models)
    described = describe(models, places, adapters, reader)
    with_files = nn.Module() if described.config else unwrapped(models[0])
    files = {**(described.config or {}), **model_files(with_files, "", export_files)}
    check_files(files)
    checksums = Checksums(reader)
    return Companion(
        models=models,
        places=places,
        adapters=adapters,
        files=files,
        frozen_digest=frozen_digest(described.frozen, checksums),
        digests={key: checksums.of(tensor) for key, tensor in described.kept.items()},
        absent=described.table.absent,
        unread=[name for name, each in described.frozen.items() if not is_read(each, reader)],
    )


def adapters_of(models: Sequence[nn.Module]) -> tuple[str, ...]:
    return tuple(adapter_of(unwrapped(each)) for each in models)


def lend(models: Sequence[nn.Module], places: Sequence[TravellingTensor], reader: Reader) -> None:
    """Say what this rank has, while the head makes or writes its companion."""
    describe(models, places, adapters_of(models), reader)


def frozen_digest(frozen: Mapping[str, Tensor], checksums: Checksums) -> str:
    digest = xxhash.xxh3_128()
    for name, parameter in sorted(frozen.items()):
        each = name, str(parameter.dtype), list(parameter.shape), checksums.of(parameter)
        digest.update(json.dumps(each).encode())
    return digest.hexdigest()


def _chunks(tensor: Tensor, reader: Reader) -> Iterator[memoryview]:
    yield from host_chunks(reader.whole(tensor))


def _header(payloads: Mapping[str, Payload], table: ExportTable) -> bytes:
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
    view = memoryview(data).cast("B")
    written = 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], position + written)
    return written
