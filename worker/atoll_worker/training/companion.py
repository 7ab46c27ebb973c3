"""What an export needs beside the values that travel: made here, where the model is (rule 36).

The shards hold the values of the tensors that travel, and nothing else of the model. The registrar
asks one learner for the rest once the values have begun, and every learner at the end for what
training has changed of it. `atoll_protos.companion` describes the bytes; this module makes them:

- the *table*: under which keys of the model's state dict each travelling tensor stands (a tied
  weight under several), and which keys are absent, with the reason;
- the tensors of the state dict that do not travel: frozen parameters, integer and bool buffers,
  masks with -inf. Of a model with an adapter (PEFT) only the adapter's: the base is not shipped;
- small files: config.json, a tokenizer (model_files.py).

Of a model on several ranks the head makes all of it: what every rank has is put together
(described.py), and the head reads whole tensors, one at a time (ranks/reading.py). So the companion
and the digest are those of the model, however it is cut, and in however many stages.

They are written behind the regions of the shared memory's file, from where the transport sends
them part by part.

The frozen digest
-----------------
Frozen parameters are not exchanged, so nothing would ever make them equal, and learners with
different bases would train against each other in silence. `frozen_digest` is a checksum of them in
the order of their names, which every Join carries (rule 3). It is computed once, at the opening.
Buffers are not in it: counters differ by right.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import xxhash
from torch import Tensor, nn

from atoll_protos.companion import CHANGED_BYTES_MAX, FILE, METADATA, TENSOR, Table, check_files
from atoll_protos.frames import Buffer
from atoll_protos.tensors import SAFETENSORS
from atoll_worker.ranks.reading import Reader
from atoll_worker.training.checksums import PLAIN_READER, Checksums, host_chunks, is_read
from atoll_worker.training.described import HEADER_ROOM_BYTES, describe
from atoll_worker.training.model_files import adapter_of, model_files
from atoll_worker.training.naming import shortened, unwrapped
from atoll_worker.training.parameters import Place

ALIGNMENT = 64


@dataclass(slots=True, kw_only=True)
class Companion:
    """The companion of one model; `digests` are those of the kept tensors at the opening."""

    models: Sequence[nn.Module]  # of this process
    places: Sequence[Place]
    adapters: Sequence[str]  # of the models; empty where one has none
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
        described = describe(self.models, self.places, self.adapters, reader)
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
        checksums = Checksums(reader)
        for key, tensor in sorted(kept.items(), key=lambda item: (item[1].nbytes, item[0])):
            if self.digests.get(key) == checksums.of(tensor):
                continue
            room -= tensor.nbytes
            if room >= 0:
                found[key] = tensor
            else:
                left.append(key)
        self.stale = left
        return found


def companion_of(
    models: Sequence[nn.Module],
    places: Sequence[Place],
    export_files: Sequence[object] = (),
    reader: Reader = PLAIN_READER,
) -> Companion:
    """Look at a model that is about to be trained; `models` are the modules that this process has.

    Where it is on several ranks, `reader` is the head's, and the others `lend` what they have.

    Raises SpecError for `export_files` that are no files.
    """
    adapters = adapters_of(models)
    described = describe(models, places, adapters, reader)
    with_files = nn.Module() if described.config else unwrapped(models[0])
    files = {**described.config, **model_files(with_files, "", export_files)}
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
    """The name of each model's adapter, empty where one has none."""
    return tuple(adapter_of(unwrapped(each)) for each in models)


def lend(models: Sequence[nn.Module], places: Sequence[Place], reader: Reader) -> None:
    """Say what this rank has, while the head makes or writes its companion."""
    describe(models, places, adapters_of(models), reader)


def frozen_digest(frozen: Mapping[str, Tensor], checksums: Checksums) -> str:
    """The checksum of all frozen parameters, in the order of their names; hexadecimal."""
    digest = xxhash.xxh3_128()
    for name, parameter in sorted(frozen.items()):
        each = name, str(parameter.dtype), list(parameter.shape), checksums.of(parameter)
        digest.update(json.dumps(each).encode())
    return digest.hexdigest()


def _chunks(tensor: Tensor, reader: Reader) -> Iterator[memoryview]:
    """`host_chunks` of a tensor that is put together only when its turn comes."""
    yield from host_chunks(reader.whole(tensor))


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
