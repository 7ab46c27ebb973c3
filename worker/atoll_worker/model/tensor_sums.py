"""Checksums of tensors, whatever they are made of and wherever they lie.

Of a quantised parameter the tensors that it is made of are read. Of a model on several ranks the
head reads the whole tensors; a tensor of which it has nothing is summed where it is.
"""

from collections.abc import Iterator

import torch
import xxhash
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from atoll_worker.model.naming import same_memory
from atoll_worker.model.tensors import byte_view
from atoll_worker.ranks.boxes import is_distributed
from atoll_worker.ranks.whole_tensors import Reader

CHUNK_BYTES = 64 << 20
PLAIN = (Tensor, nn.Parameter)
PLAIN_READER = Reader()  # of a model that this process has whole
NO_BYTES = (RuntimeError, TypeError, AttributeError)  # what a subclass of Tensor may raise


class Checksums:
    """Of tensors as they are now; each is read once, under whatever names it has."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[tuple[object, ...], int] = {}

    def of(self, tensor: Tensor) -> int:
        if self._reader.is_remote(tensor):
            return self._reader.checksum(tensor)
        if tensor.layout is not torch.strided:  # it has no memory of its own: its parts have
            return checksum(tensor.to_dense())
        if is_traceable_wrapper_subclass(tensor) and not is_distributed(tensor):  # likewise
            digest = xxhash.xxh3_64()
            for part in _parts_of(tensor):
                digest.update(self.of(part).to_bytes(8))
            return digest.intdigest()
        place = same_memory(tensor.detach())
        if place not in self._known:
            self._known[place] = checksum(self._reader.whole(tensor))
        return self._known[place]


def checksum(tensor: Tensor) -> int:
    digest = xxhash.xxh3_64()
    for chunk in host_chunks(tensor):
        digest.update(chunk)
    return digest.intdigest()


def host_chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in order, in pieces of CHUNK_BYTES; none of one without plain bytes."""
    if tensor.is_meta or not tensor.numel():
        return
    flat = bytes_of(tensor)
    if flat is None:
        return
    for start in range(0, flat.numel(), CHUNK_BYTES):
        yield byte_view(flat[start : start + CHUNK_BYTES].cpu())


def bytes_of(tensor: Tensor) -> Tensor | None:
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


def is_read(tensor: Tensor, reader: Reader) -> bool:
    """Whether the values of a tensor are in its checksum."""
    if reader.is_remote(tensor) or tensor.layout is not torch.strided:
        return True  # its giver reads them, or its parts are
    if is_distributed(tensor):
        return reader.knows(tensor)
    if is_traceable_wrapper_subclass(tensor):
        return all(is_read(part, reader) for part in _parts_of(tensor))
    return bytes_of(tensor) is not None
