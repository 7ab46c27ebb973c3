"""Files as training data: a part for every slot, a held-out part, batches by cursor.

1. *No two learners train on the same text, and none on the held-out text.* Whether a document, a
   file or a part of one, is held out is a function of its content, so adding a file moves no other
   one. The others are dealt to the slots in the order of their digests.
2. *A learner that is started again goes on where it was.* `Batches.at(cursor)` is a function of
   (seed, slot, cursor): there is no iterator whose position could be lost.
3. *Every window is seen once per pass.* Each pass has a new order and new cuts.

Text is bytes: a token is a byte, there is no tokenizer.
"""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from atoll import SpecError

HELDOUT_ONE_IN = 20  # documents
FILE_BYTES_MAX = 1 << 20  # a longer file is cut
DOCUMENT_BYTES = 16 << 10
FILES_MIN = 64  # with fewer, every file is cut, else a split by whole files would be lopsided
TEST_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The documents of a data set, files or parts; each goes to one slot, or is held out."""

    documents: Mapping[bytes, bytes] = field(repr=False)  # by their digests, in the order of these

    def heldout(self) -> Tensor:
        """The held-out bytes, uint8 [n]; SpecError when there are none."""
        documents = self.documents.items()
        return joined((c for digest, c in documents if held_out(digest)), "nothing to hold out")

    def shard(self, index: int, count: int) -> Tensor:
        """The training bytes of one slot of `count`, uint8 [n]; SpecError when there are none."""
        training = [c for digest, c in self.documents.items() if not held_out(digest)]
        return joined(training[index::count], f"{len(training)} documents for {count} slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Random access to a slot's data: windows of `context + 1` bytes, each once per pass."""

    text: Tensor  # uint8 [n]
    seed: int
    slot: str
    batch: int
    context: int
    orders: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.windows < 1:
            problem = f"{len(self.text)} bytes are too few for a context of {self.context}"
            remedy = f"give at least {2 * self.context + 1} bytes per slot or a shorter context"
            raise SpecError("data", problem, remedy)

    @property
    def windows(self) -> int:
        """How many windows a pass has, whatever its cut."""
        return (len(self.text) - 1) // self.context - 1

    def at(self, cursor: int) -> Tensor:
        """The batch at `cursor` (0, 1, 2, ...): int64 [batch, context + 1]."""
        first = cursor * self.batch
        starts = torch.stack([self.start(first + row) for row in range(self.batch)])
        return self.text[starts[:, None] + torch.arange(self.context + 1)].long()

    def start(self, position: int) -> Tensor:
        """Where the window at `position` of this slot's endless order begins: int64 scalar."""
        number, place = divmod(position, self.windows)
        if number not in self.orders:
            if len(self.orders) > 1:
                self.orders.pop(min(self.orders))
            self.orders[number] = self.order(number)
        return self.orders[number][place]

    def order(self, number: int) -> Tensor:
        """The starts of all windows of one pass, shuffled: int64 [windows]."""
        name = f"{self.seed}/{self.slot}/{number}".encode()
        generator = torch.Generator()
        generator.manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:8]) >> 1)
        cut = torch.randint(self.context, (), generator=generator)
        return torch.randperm(self.windows, generator=generator) * self.context + cut


def windows(text: Tensor, *, context: int, byte_count_max: int) -> Tensor:
    """Evenly spread windows for an evaluation: int64 [k, context + 1].

    Raises SpecError for too short a text.
    """
    whole = (len(text) - 1) // context
    if whole < 1:
        problem = f"{len(text)} held-out bytes are fewer than one context of {context}"
        raise SpecError("data", problem, "give more data or a shorter context")
    wanted = max(1, min(whole, byte_count_max // context))
    chosen = torch.arange(wanted) * whole // wanted
    return text[(chosen * context)[:, None] + torch.arange(context + 1)].long()


def read(patterns: Sequence[str] = ()) -> Text:
    """The files that match `patterns` (paths, folders, globs); without any, Python's own library.

    Raises SpecError for a pattern that matches nothing and a file that cannot be read.
    """
    paths = matching(patterns) if patterns else standard_library()
    if not paths:
        raise SpecError("data", "no file found", "name files with --data")
    cut_all = len(paths) < FILES_MIN
    documents = {
        hashlib.sha256(part).digest(): part  # the same content twice counts once
        for path in paths
        for part in cut(content_of(path), cut_all=cut_all)
    }
    return Text(documents=dict(sorted(documents.items())))


def held_out(digest: bytes) -> bool:
    """Whether a document is held out: a function of its content alone."""
    return digest[0] % HELDOUT_ONE_IN == 0


def standard_library() -> list[Path]:
    """Python's own sources without tests: real text that is always there (PSF licence)."""
    found = []
    for folder, inner, files in os.walk(sysconfig.get_path("stdlib")):
        inner[:] = [name for name in inner if name not in TEST_FOLDERS]  # not even looked into
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(found)


def matching(patterns: Sequence[str]) -> list[Path]:
    """The files behind paths, folders (all files below) and globs, each once, sorted."""
    found: set[Path] = set()
    for pattern in patterns:
        names = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        files = [path for name in names for path in files_below(Path(name))]
        if not files:
            raise SpecError("data", f"{pattern} matches no file", "correct the path or the glob")
        found.update(files)
    return sorted(found)


def files_below(path: Path) -> list[Path]:
    """The path itself, or all files below a folder."""
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]


def content_of(path: Path) -> bytes:
    """The file's bytes, or a SpecError that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        remedy = "make it readable for this user or leave it out of --data"
        raise SpecError("data", f"{path} cannot be read: {error.strerror}", remedy) from error


def cut(content: bytes, *, cut_all: bool) -> Iterable[bytes]:
    """One document of a file, or several parts of DOCUMENT_BYTES if it is long or `cut_all`."""
    step = DOCUMENT_BYTES if cut_all or len(content) > FILE_BYTES_MAX else FILE_BYTES_MAX
    return (content[start : start + step] for start in range(0, len(content), step))


def joined(documents: Iterable[bytes], trouble: str) -> Tensor:
    """The documents' bytes as one tensor, uint8 [n]; SpecError with `trouble` if there are none."""
    content = bytearray().join(documents)
    if not content:
        raise SpecError("data", f"too little of it: {trouble}", "name more or larger files")
    return torch.frombuffer(content, dtype=torch.uint8)
