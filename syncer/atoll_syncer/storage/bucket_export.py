"""An export below a URL of a bucket: made in a folder of this machine, and sent (rule 27).

    shard n:    its final bases --> URL/parts/<run>-shard-<n>.safetensors
    registrar:  all parts --> SCRATCH/final-<run>: there storage/export makes the model
                its files --> URL, the index last; then the parts and the folder go

A file that was sent leaves the folder, so after a crash or trouble the next call continues. What is
read or sent is never in memory as a whole. An export of a job that trains is taken in SCRATCH and
sent to URL/step-N, the index last.
"""

import hashlib
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import obstore

from atoll_protos.job.companion import STEMS
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.arrays import Array
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage.buckets import AWAY, PARTS_AT_ONCE, Bucket, bucket_errors
from atoll_syncer.storage.export import (
    STEP,
    Export,
    ExportPart,
    encode_part,
    index_name,
    index_of,
    parse_index,
    part_name,
    read_indexes,
    stale_names,
)
from atoll_syncer.storage.files import whole_file
from atoll_syncer.storage.store import (
    StoreCorrupt,
    StoreMissing,
    StoreUnavailable,
    storage_errors,
)

PIECE_BYTES = 16 << 20  # of a file that is sent, PARTS_AT_ONCE of them, or read
INDEXES = tuple(map(index_name, STEMS))

Written = dict[str, datetime]  # by an object's name, when it was written


class BucketExport:
    """See the module. The methods are those of Export, and raise what they raise.

    `bucket` is what `url` names, which is for people. Exports of a job that trains are taken in
    `folder`, for `keep_step`.
    """

    def __init__(self, bucket: Bucket, url: str, scratch: Path) -> None:
        self._bucket, self.url, self.folder = bucket, url.rstrip("/"), scratch

    def check(self) -> None:
        """Raises StoreUnavailable where it cannot be made or sent, long before it is needed."""
        Export(self.folder).check()
        name = f"atoll-{secrets.token_hex(8)}.tmp"
        with self._errors(name):
            obstore.put(self._bucket, name, b"a probe", use_multipart=False)
            obstore.head(self._bucket, name)
        self._delete([name])

    def write_part(self, run: str, shard: int, bases: Mapping[int, Array]) -> ExportPart:
        """Send bases of a shard, by fragment; the same call sends the same object again."""
        parts, digest = encode_part(run, shard, bases), hashlib.sha256()
        for part in parts:
            digest.update(part)
        sent = ExportPart(file=part_name(run, shard), digest=digest.hexdigest())
        self._put(sent.file, _pieces(parts))
        return sent

    def assemble(
        self,
        run: str,
        layout: Layout,
        parts: Sequence[ExportPart],
        companion: Sequence[Iterable[bytes]] = (),
        *,
        tick: int | None = None,
    ) -> str:
        """As Export does it, below the URL; returns the URL of the index."""
        known = {name: self._read_index(name) for name in INDEXES}
        made = Export(self.folder / f"final-{run}")
        index = index_of(known, run)
        if not index:
            index = index_of(read_indexes(made.folder), run)
            if not index:
                self._fetch(made.folder, [part.file for part in parts])
                try:
                    index = made.assemble(run, layout, parts, companion, tick=tick).name
                except StoreCorrupt:  # a part that is sent again is read again
                    shutil.rmtree(made.folder, ignore_errors=True)
                    raise
            self._delete(sorted(stale_names(known, self._send(made.folder, index))))
        self._delete([part.file for part in parts])
        shutil.rmtree(made.folder, ignore_errors=True)
        return f"{self.url}/{index}"

    def steps(self) -> list[int]:
        """The steps of which there is an export, the latest last: an older run's may be higher."""
        return _whole(self._sent_steps())

    def keep_step(self, step: int, kept: int) -> None:
        """Send the export of `step` that was taken in the folder; the latest `kept` stay."""
        name = f"step-{step}"
        try:
            self._remove_step(self._sent_steps().get(step, {}))
            index = next(iter(read_indexes(self.folder / name)))
            self._send(self.folder / name, index, f"{name}/")
            sent = self._sent_steps()
            for each in sent.keys() - set(_whole(sent)[-kept:]):
                self._remove_step(sent[each])
        finally:
            for taken in self.folder.glob("step-*"):
                shutil.rmtree(taken, ignore_errors=True)

    def _fetch(self, folder: Path, names: Sequence[str]) -> None:
        """Read objects into files of their names. A file that is there is whole."""
        missing = [name for name in names if not (folder / name).exists()]
        with ThreadPoolExecutor(PARTS_AT_ONCE) as threads:
            list(threads.map(partial(self._fetch_one, folder), missing))

    def _fetch_one(self, folder: Path, name: str) -> None:
        with self._errors(name):
            byte_count = obstore.head(self._bucket, name)["size"]
        with whole_file(folder / name) as file:
            for start in range(0, byte_count, PIECE_BYTES):
                end = min(start + PIECE_BYTES, byte_count)
                with self._errors(name):
                    data = obstore.get_range(self._bucket, name, start=start, end=end)
                file.write(memoryview(data))

    def _send(self, folder: Path, index: str, below: str = "") -> set[str]:
        """Send the files of a folder, which leave it, the index last; returns what it names."""
        about = read_indexes(folder)[index]
        with storage_errors(folder):
            files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in [*(each for each in files if each != folder / index), folder / index]:
            with storage_errors(path):
                with path.open("rb") as file:
                    self._put(f"{below}{path.relative_to(folder).as_posix()}", file)
                path.unlink()
        return {index, *about["weight_map"].values(), *about["metadata"]["files"]}

    def _put(self, name: str, data: Iterator[memoryview] | BinaryIO) -> None:
        with self._errors(name):
            obstore.put(
                self._bucket, name, data, chunk_size=PIECE_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def _read_index(self, name: str) -> dict[str, Any]:
        with self._errors(name), suppress(FileNotFoundError):
            return parse_index(bytes(obstore.get(self._bucket, name).bytes()))
        return {}

    def _sent_steps(self) -> dict[int, Written]:
        """By step, what lies there: of one that is half sent, too."""
        with self._errors("step-*"):
            folders = obstore.list_with_delimiter(self._bucket)["common_prefixes"]
            return {
                int(folder.removeprefix("step-")): {
                    found["path"]: found["last_modified"]
                    for found in obstore.list(self._bucket, folder).collect()
                }
                for folder in folders
                if STEP.fullmatch(folder)
            }

    def _remove_step(self, written: Written) -> None:
        """The index first: what has one is whole."""
        self._delete(sorted(written, key=lambda name: not name.endswith(INDEXES)))

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._errors(name), suppress(FileNotFoundError):
                obstore.delete(self._bucket, name)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """What should be there and is not, may be there again: try again."""
        try:
            with bucket_errors(f"{self.url}/{name}"):
                yield
        except StoreMissing as missing:
            raise StoreUnavailable(missing.path, missing.reason, AWAY) from missing


def _whole(sent: Mapping[int, Written]) -> list[int]:
    """The steps that have an index, by when it was sent."""
    found = [
        (time, step)
        for step, written in sent.items()
        for name, time in written.items()
        if name.endswith(INDEXES)
    ]
    return [step for _, step in sorted(found)]


def _pieces(parts: Sequence[Buffer]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, view.nbytes, PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
