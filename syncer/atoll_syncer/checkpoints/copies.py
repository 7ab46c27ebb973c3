"""Checkpoints of a run: copies of what its shards have stored (rule 42).

    PLACE/step-N/<shard>/         snapshots/ and objects/ as in the shard's store, part.json last
    PLACE/step-N/checkpoint.json  from shard 0, once all parts are there: the checkpoint is whole
    PLACE/step-N/model/           likewise, then: the model of it (checkpoints/restoring)

So a part is read like the store of a shard. Its part.json is created once, and then nothing of the
part changes. Of two processes of a shard that write one part both write objects that are named by
their content, and only one creates part.json.

A run that began with a checkpoint may come to a step of which its parent has left a part. That goes
first: parts of two runs are never taken together.

Places of checkpoints: a folder that every shard reaches, or a folder of a bucket.

A place has folders step-N with small files, and in them the parts of the shards, each of which has
the form of a store (storage/files). An object comes into a part without being read where the file
system can link it, or the bucket's server can copy it.
"""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import obstore

from atoll_protos import documents
from atoll_protos.job.layout import Layout
from atoll_syncer.model.history import History
from atoll_syncer.storage import journal
from atoll_syncer.storage.files import (
    FileStore,
    Store,
    StoreFull,
    StoreMissing,
    epoch_of,
    files_in_order,
    read_object,
    storage_errors,
    whole_file,
)
from atoll_syncer.storage.journal import LogSnapshot
from atoll_syncer.storage.object_store import (
    PARTS_AT_ONCE,
    PIECE_BYTES,
    ObjectStore,
    bucket_errors,
    open_bucket,
)

STEP: Final = re.compile(r"step-([0-9]+)/?")
FILE: Final = "file://"
COPY_BYTES_MAX: Final = 4 << 30  # S3 copies at most 5 GB with one request
FREE_SHARE_MIN: Final = 0.05
DAMAGED: Final = "the next checkpoint has other objects; see what the shard's log says of its store"


class Place(Protocol):
    """Every method may raise StoreFull and StoreUnavailable. Names are relative to `url`."""

    url: str

    def steps(self) -> list[int]:
        """The numbers of the folders step-N, ascending."""

    def part(self, name: str) -> Store:
        """A folder as a store; nothing is asked or made."""

    def make_part(self, name: str) -> Store:
        """The same, ready to be written."""

    def read(self, name: str) -> bytes:
        """A small file. Raises StoreMissing."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file as a whole, whatever it held."""

    def take(self, store: Store, part: str, name: str) -> int:
        """Bring an object of a shard's store into a part; returns its size in bytes."""

    def bring(self, made: Path, name: str) -> None:
        """Bring a model's files, which leave the folder `made`, into a folder; the index last."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""


def copied(store: Store, part: Store, name: str) -> int:
    """Copy an object by reading and writing it; returns its size. Raises what `read_object` does.

    Its name is its content's, so `put` gives it the same one.
    """
    data = read_object(store, name, DAMAGED)
    stored = part.put([data], epoch_of(name) or 0)
    assert stored == name, (stored, name)
    return len(data)


class FolderPlace:
    """See Place."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"{FILE}{folder}"

    def steps(self) -> list[int]:
        with storage_errors(self.folder), suppress(FileNotFoundError):
            return numbers_of(os.listdir(self.folder))
        return []

    def part(self, name: str) -> FileStore:
        return FileStore(self.folder / name)

    def make_part(self, name: str) -> FileStore:
        made = self.part(name)
        made.open()
        return made

    def read(self, name: str) -> bytes:
        path = self.folder / name
        with storage_errors(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                remedy = "give the place of a checkpoint"
                raise StoreMissing(os.fspath(path), "is not there", remedy) from None

    def write(self, name: str, data: bytes) -> None:
        with whole_file(self.folder / name) as file:
            file.write(data)

    def take(self, store: Store, part: str, name: str) -> int:
        target = self.part(part)
        size = target.adopt(store, name) if isinstance(store, FileStore) else None
        return copied(store, target, name) if size is None else size

    def bring(self, made: Path, name: str) -> None:
        for path in files_in_order(made):
            target = self.folder / name / path.relative_to(made)
            with storage_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)

    def remove(self, name: str) -> None:
        path = self.folder / name
        with storage_errors(path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            with suppress(OSError):  # others have parts there
                path.parent.rmdir()


def check_room(place: FolderPlace) -> None:
    """Raises StoreFull where what may be left out would soon take the room of a volume's others."""
    with storage_errors(place.folder):
        volume = shutil.disk_usage(place.folder)
    if volume.free < FREE_SHARE_MIN * volume.total:
        reason = f"less than {FREE_SHARE_MIN:.0%} of its volume is free"
        raise StoreFull(os.fspath(place.folder), reason, "make room there")


def numbers_of(names: list[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(STEP.fullmatch, names) if found)


PART: Final = "part.json"
WHOLE: Final = "checkpoint.json"
UNFINISHED_KEPT: Final = 2  # of attempts; the older of them may become whole yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """What part.json says: of which run and moment the part is, and what it holds."""

    run: str
    run_hash: str
    step: int
    tick: int
    shard: int
    shards: int
    layout_digest: str
    position: int  # of the log's entry up to which it has everything
    objects: Mapping[str, int] = field(default_factory=dict)  # size of each in bytes
    slices: tuple[Mapping[str, Any], ...] = ()  # for other programs: what lies where


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One shard's part of a checkpoint, to be taken. `snapshot` is what its log says by now."""

    step: int
    shard: int
    shards: int
    layout: Layout
    snapshot: LogSnapshot
    restore_from: str = ""  # spec.checkpoint.from of the job
    uid: str = ""  # of the job

    @property
    def history(self) -> History:
        return self.snapshot.history

    @property
    def part(self) -> str:
        return part_name(self.step, self.shard)

    @property
    def objects(self) -> frozenset[str]:
        """That must stay in the store while they are copied."""
        return frozenset(_of_checkpoint(self.history).live_objects())


def part_name(step: int, shard: int) -> str:
    return f"{step_name(step)}/{shard}"


def model_name(step: int) -> str:
    return f"{step_name(step)}/model"


def step_name(step: int) -> str:
    return f"step-{step}"


def _of_checkpoint(history: History) -> History:
    """Of each slice only the newest version; the key of proofs is for the shards alone."""
    return dataclasses.replace(history, previous={}, previous_merged={}, key="")


# ------------------------------------------------------------ taking


def is_taken(place: Place, attempt: Attempt) -> bool:
    """Whether this run has the part already; what another run has left there is removed."""
    found = read_part(place, attempt.step, attempt.shard)
    if found is None:
        return False
    if found.run == attempt.history.run:
        return True
    _remove_whole(place, attempt.step)
    remove_part(place, attempt.step, attempt.shard)
    return False


def works(
    place: Place, store: Store, attempt: Attempt, time: Callable[[], float]
) -> Iterator[Callable[[], object]]:
    """What is to be done for a part, one after the other; each may be done again."""
    sizes: dict[str, int] = {}

    def take(name: str) -> None:
        sizes[name] = place.take(store, attempt.part, name)

    def finish() -> None:
        part = place.part(attempt.part)
        taken = dataclasses.replace(attempt.snapshot, history=_of_checkpoint(attempt.history))
        journal.write(part, taken, time())
        part.create(PART, _document(_part_file(attempt, sizes)))

    yield lambda: place.make_part(attempt.part)
    for each in sorted(attempt.objects):
        yield lambda name=each: take(name)  # type: ignore[misc]
    yield finish


def _part_file(attempt: Attempt, sizes: Mapping[str, int]) -> PartFile:
    history, tensors = attempt.history, attempt.layout.tensors
    slices = [
        {
            "fragment": each.fragment,
            "object": history.heads[each.fragment].object,
            "pieces": [
                {
                    "tensor": tensors[piece.tensor].name,
                    "start": piece.start,
                    "stop": piece.stop,
                    "offset": piece.offset,
                }
                for piece in each.pieces
            ],
        }
        for each in attempt.layout.shard_slices(attempt.shard)
    ]
    return PartFile(
        run=history.run,
        run_hash=history.run_hash,
        step=attempt.step,
        tick=history.tick,
        shard=attempt.shard,
        shards=attempt.shards,
        layout_digest=history.layout_digest,
        position=attempt.snapshot.position,
        objects=sizes,
        slices=tuple(slices),
    )


# ------------------------------------------------------------ whole ones


def finish(place: Place, attempt: Attempt, time: Callable[[], float]) -> Sequence[int]:
    """The shards that have no part yet, or shard 0 alone, which says that it is whole; none: it is.

    Shard 0 says so in its place when all parts are there.
    """
    step, run = attempt.step, attempt.history.run
    if is_whole(place, step, run):
        return []
    parts = [read_part(place, step, shard) for shard in range(attempt.shards)]
    found = [each for each in parts if each is not None and each.run == run]
    if len(found) < attempt.shards or attempt.shard:
        there = {each.shard for each in found}
        return [shard for shard in range(attempt.shards) if shard not in there] or [0]
    about = {
        "format": 1,
        "run": run,
        "run_hash": attempt.history.run_hash,
        "from": attempt.restore_from,
        "uid": attempt.uid,
        "step": step,
        "time": time(),
        "tick": min(each.tick for each in found),
        "shards": attempt.shards,
        "layout_digest": attempt.history.layout_digest,
        "byte_count": sum(sum(each.objects.values()) for each in found),
        "tensors": attempt.history.tensors,
        "parts": found,
    }
    place.write(f"{step_name(step)}/{WHOLE}", _document(about))
    return []


def newer_elsewhere(place: Place, attempt: Attempt) -> int:
    """The newest step above an attempt's of which another shard has a part; 0: there is none."""
    run, others = attempt.history.run, [x for x in range(attempt.shards) if x != attempt.shard]
    for step in reversed(place.steps()):
        parts = (read_part(place, step, each) for each in others if step > attempt.step)
        if any(part is not None and part.run == run for part in parts):
            return step
    return 0


def is_whole(place: Place, step: int, run: str) -> bool:
    about = read_whole(place, step)
    return about is not None and about["run"] == run


def read_whole(place: Place, step: int) -> dict[str, Any] | None:
    """What checkpoint.json says; None: it is not there, or is none."""
    with suppress(StoreMissing, ValueError, KeyError, TypeError):
        about = documents.mapping(place.read(f"{step_name(step)}/{WHOLE}"))
        for name, kind in (("run", str), ("time", float), ("tick", int), ("shards", int)):
            documents.from_document(kind, about[name])
        if about["shards"] > 0:
            return about
    return None


def of_job(about: Mapping[str, Any]) -> tuple[object, ...]:
    """By what the runs of one job are known: the run hash, spec.checkpoint.from, and its UID."""
    return about.get("run_hash"), about.get("from", ""), about.get("uid", "")


def read_part(place: Place, step: int, shard: int) -> PartFile | None:
    """What part.json says; None: it is not there, or is none."""
    with suppress(StoreMissing, ValueError, KeyError, TypeError, AttributeError):
        data = place.read(f"{part_name(step, shard)}/{PART}")
        found: PartFile = documents.from_document(PartFile, documents.loads(data))
        return found
    return None


def _document(value: Any) -> bytes:
    return json.dumps(documents.to_document(value), indent=1).encode()


# ------------------------------------------------------------ removing


def prune(place: Place, attempt: Attempt, keep: int) -> int | None:
    """Remove this shard's parts of older checkpoints; returns the newest step that is whole.

    The newest `keep` whole ones stay, and the newest attempts, which may become whole yet.
    """
    run, shard = attempt.history.run, attempt.shard
    steps = place.steps()
    whole = [step for step in steps if is_whole(place, step, run)]
    newest = whole[-1] if whole else None
    open_ = [step for step in steps if newest is None or step > newest]
    stay = {*whole[-keep:], *_mine(place, open_, run, shard)[-UNFINISHED_KEPT:]}
    for step in _mine(place, [step for step in steps if step not in stay], run, shard):
        if shard == 0:
            _remove_whole(place, step)
        remove_part(place, step, shard)
    return newest


def _mine(place: Place, steps: Sequence[int], run: str, shard: int) -> list[int]:
    found = {step: read_part(place, step, shard) for step in steps}
    return [step for step, part in found.items() if part is not None and part.run == run]


def _remove_whole(place: Place, step: int) -> None:
    place.remove(f"{step_name(step)}/{WHOLE}")
    place.remove(model_name(step))


def remove_part(place: Place, step: int, shard: int) -> None:
    """Its part.json goes first: what has one is whole."""
    place.remove(f"{part_name(step, shard)}/{PART}")
    place.remove(part_name(step, shard))


class BucketPlace:
    """See Place. `endpoint` is where the provider answers; empty: at its usual address."""

    def __init__(self, url: str, endpoint: str = "") -> None:
        self.url, self._endpoint = url.rstrip("/"), endpoint
        self._bucket = open_bucket(self.url, endpoint)

    def steps(self) -> list[int]:
        with bucket_errors(self.url):
            return numbers_of(list(obstore.list_with_delimiter(self._bucket)["common_prefixes"]))

    def part(self, name: str) -> ObjectStore:
        url = f"{self.url}/{name}"
        return ObjectStore(open_bucket(url, self._endpoint), url)

    def make_part(self, name: str) -> ObjectStore:
        made = self.part(name)
        made.open()
        return made

    def read(self, name: str) -> bytes:
        with bucket_errors(f"{self.url}/{name}"):
            return bytes(obstore.get(self._bucket, name).bytes())

    def write(self, name: str, data: bytes) -> None:
        with bucket_errors(f"{self.url}/{name}"):
            obstore.put(self._bucket, name, data, use_multipart=False)

    def take(self, store: Store, part: str, name: str) -> int:
        root, folder = _root_and_path(self.url)
        if not isinstance(store, ObjectStore) or _root_and_path(store.url)[0] != root:
            return copied(store, self.part(part), name)
        bucket, old = open_bucket(root, self._endpoint), f"{_root_and_path(store.url)[1]}/{name}"
        new = f"{folder}/{part}/{name}".lstrip("/")
        with bucket_errors(f"{root}/{old}"):
            size = int(obstore.head(bucket, old.lstrip("/"))["size"])
            if size <= COPY_BYTES_MAX:
                obstore.copy(bucket, old.lstrip("/"), new)
                return size
        return copied(store, self.part(part), name)

    def bring(self, made: Path, name: str) -> None:
        for path in files_in_order(made):
            to = f"{name}/{path.relative_to(made).as_posix()}"
            with storage_errors(path), bucket_errors(f"{self.url}/{to}"), path.open("rb") as file:
                obstore.put(
                    self._bucket, to, file, chunk_size=PIECE_BYTES, max_concurrency=PARTS_AT_ONCE
                )

    def remove(self, name: str) -> None:
        with bucket_errors(f"{self.url}/{name}"):
            found = [each["path"] for page in obstore.list(self._bucket, name) for each in page]
            for each in [*found, name]:
                with suppress(FileNotFoundError):
                    obstore.delete(self._bucket, each)


def _root_and_path(url: str) -> tuple[str, str]:
    """The bucket alone, which of Azure is a container, and the path in it."""
    scheme, host, path, *_ = urlsplit(url.rstrip("/"))
    parts = path.strip("/").split("/")
    container = [parts.pop(0)] if scheme == "az" else []
    return "/".join([f"{scheme}://{host}", *container]), "/".join(parts)


def open_place(endpoint: str, url: str) -> Place:
    """A folder, as file:///FOLDER, or one of a bucket. Nothing is asked yet. Raises SpecError."""
    if url.startswith(f"{FILE}/"):
        return FolderPlace(Path(url.removeprefix(FILE)))

    return BucketPlace(url, endpoint)
