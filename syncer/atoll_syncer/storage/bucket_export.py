"""An export below a URL of a bucket: made in a folder of this machine, and sent (rule 27).

    shard n:    its final bases --> URL/parts/<run>-shard-<n>.safetensors
    registrar:  all parts --> SCRATCH/final-<run>: there storage/export makes the model
                its files --> URL, the index last; then the parts and the folder go

A file that was sent leaves the folder, so after a crash or trouble the next call continues. What is
read or sent is never in memory as a whole.
"""

import hashlib
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import obstore

from atoll_protos.job.layout import Layout
from atoll_protos.transfer.arrays import Array
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.storage.buckets import (
    AWAY,
    PARTS_AT_ONCE,
    PIECE_BYTES,
    Bucket,
    bucket_errors,
)
from atoll_syncer.storage.export import (
    INDEXES,
    Export,
    ExportPart,
    encode_part,
    index_of,
    parse_index,
    part_name,
    read_indexes,
    stale_names,
)
from atoll_syncer.storage.files import files_in_order, whole_file
from atoll_syncer.storage.store import (
    StoreCorrupt,
    StoreMissing,
    StoreUnavailable,
    storage_errors,
)


class BucketExport:
    """See the module. The methods are those of Export, and raise what they raise.

    `bucket` is what `url` names, which is for people.
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

    def _send(self, folder: Path, index: str) -> set[str]:
        """Send the files of a folder, which leave it, the index last; returns what it names."""
        about = read_indexes(folder)[index]
        for path in files_in_order(folder):
            with storage_errors(path):
                with path.open("rb") as file:
                    self._put(path.relative_to(folder).as_posix(), file)
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


def _pieces(parts: Sequence[Buffer]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, view.nbytes, PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
