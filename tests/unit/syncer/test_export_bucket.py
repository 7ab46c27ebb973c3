"""An export below a URL of a bucket: the model that a folder has, wherever it was interrupted."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore import exceptions
from obstore.store import MemoryStore

from atoll_syncer.storage import export, object_store
from atoll_syncer.storage.export import INDEX, BucketExport, Export, ExportPart
from atoll_syncer.storage.files import StoreCorrupt, StoreUnavailable
from atoll_syncer.storage.object_store import ObjectStore
from unit.syncer.test_export import LAYOUT, cut, model

BASES = [cut(LAYOUT, model(LAYOUT), shard) for shard in range(LAYOUT.shards)]
URL = "s3://bucket/models/tiny/"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(object_store, "PIECE_BYTES", 10_000)


def exported(target: Export | BucketExport, run: str = "r1") -> list[ExportPart]:
    """All that the shards of a job do at its end."""
    parts = [target.write_part(run, shard, bases) for shard, bases in enumerate(BASES)]
    target.assemble(run, LAYOUT, parts)
    return parts


def contents(bucket: MemoryStore, below: str = "") -> dict[str, bytes]:
    names = [each["path"] for each in obstore.list(bucket, below).collect()]
    return {name: bytes(obstore.get(bucket, name).bytes()) for name in names}


def in_folder(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_bucket_has_what_a_folder_has_and_nothing_stays_behind(tmp_path: Path) -> None:
    bucket, scratch = MemoryStore(), tmp_path / "scratch"
    target = BucketExport(ObjectStore(bucket, URL), scratch)
    target.check()
    assert contents(bucket) == {}, "what was tried is removed"
    parts = exported(target)
    exported(Export(tmp_path / "export"))
    assert contents(bucket) == in_folder(tmp_path / "export")
    assert list(scratch.iterdir()) == []
    before = obstore.list(bucket).collect()
    index = target.assemble("r1", LAYOUT, parts)
    assert index == f"s3://bucket/models/tiny/{INDEX}"
    assert obstore.list(bucket).collect() == before, "a second call changes nothing"


class Interrupted(BaseException):
    """The process was killed."""


class Faulty:
    """obstore, of which request `number` fails, before or after it was done.

    `look` is called after each request.
    """

    def __init__(
        self, number: int, fault: BaseException, look: Callable[[], None], *, after: bool = False
    ) -> None:
        self.number, self.fault, self.look, self.after = number, fault, look, after
        self.numbers = itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        def request(*arguments: Any, **options: Any) -> Any:
            is_it = next(self.numbers) == self.number
            if is_it and not self.after:
                raise self.fault
            try:
                return getattr(obstore, name)(*arguments, **options)
            finally:
                self.look()
                if is_it:
                    raise self.fault

        return request


def check_whole(bucket: MemoryStore) -> None:
    """An index that is there names whole files of its run."""
    found = contents(bucket)
    for name in found:
        if name.endswith(".index.json"):
            folder = name.rpartition("/")[0]
            index = json.loads(found[name])
            for file in set(index["weight_map"].values()):
                assert f"{folder}/{file}".lstrip("/") in found, name


AWAY = exceptions.GenericError("away")


@pytest.mark.parametrize(
    ("fault", "after"),
    [
        pytest.param(AWAY, False, id="away"),
        pytest.param(AWAY, True, id="the answer is lost"),
        pytest.param(Interrupted(), True, id="killed"),
    ],
)
def test_wherever_it_is_interrupted_the_next_calls_make_the_same_model(
    fault: BaseException, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(Export(tmp_path / "export"))
    number, hit = 0, True
    while hit:
        number += 1
        bucket, hit = MemoryStore(), False
        scratch = tmp_path / f"scratch-{number}"
        faulty = Faulty(number, fault, partial(check_whole, bucket), after=after)
        monkeypatch.setattr(object_store, "obstore", faulty)
        while True:
            try:
                exported(BucketExport(ObjectStore(bucket, URL), scratch))
            except (StoreUnavailable, Interrupted):
                hit = True
            else:
                break
        assert contents(bucket) == in_folder(tmp_path / "export"), number
        assert list(scratch.iterdir()) == []
    assert number > 10


def test_what_was_made_is_not_made_again_when_it_could_not_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, made = MemoryStore(), list[str]()
    assemble = Export.assemble

    def counted(self: Export, run: str, *rest: Any, **options: Any) -> Path:
        made.append(run)
        return assemble(self, run, *rest, **options)

    class Away:
        """obstore, of which the files cannot be sent yet."""

        def __getattr__(self, name: str) -> Any:
            return getattr(obstore, name)

        def put(self, bucket: MemoryStore, name: str, *rest: Any, **options: Any) -> Any:
            if not name.startswith("parts/"):
                raise exceptions.GenericError("away")
            return obstore.put(bucket, name, *rest, **options)

    monkeypatch.setattr(Export, "assemble", counted)
    with monkeypatch.context() as patch:
        patch.setattr(object_store, "obstore", Away())
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"s3://bucket/models/tiny/\S+: away"):
                exported(BucketExport(ObjectStore(bucket, URL), tmp_path))
    exported(BucketExport(ObjectStore(bucket, URL), tmp_path))
    assert made == ["r1"]


def test_a_part_that_came_damaged_is_refused_and_read_again(tmp_path: Path) -> None:
    bucket = MemoryStore()
    target = BucketExport(ObjectStore(bucket, URL), tmp_path)
    parts = [target.write_part("r1", shard, bases) for shard, bases in enumerate(BASES)]
    data = contents(bucket)[parts[1].file]
    obstore.put(bucket, parts[1].file, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreCorrupt, match=r"r1-shard-001\.safetensors: its sha256 is"):
        target.assemble("r1", LAYOUT, parts)
    assert INDEX not in contents(bucket)
    obstore.put(bucket, parts[1].file, data)
    target.assemble("r1", LAYOUT, parts)
    assert INDEX in contents(bucket)


def test_a_part_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    """A bucket that is gone answers as if it were empty, and may come back."""
    target = BucketExport(ObjectStore(MemoryStore(), URL), tmp_path)
    part = target.write_part("r1", 0, BASES[0])
    away = ExportPart(file="parts/r1-shard-001.safetensors", digest=part.digest)
    with pytest.raises(StoreUnavailable, match=r"shard-001\.safetensors: there is no such name"):
        target.assemble("r1", LAYOUT, [part, away])


def test_another_runs_model_is_replaced(tmp_path: Path) -> None:
    bucket = MemoryStore()
    obstore.put(bucket, "notes.txt", b"of the user")
    exported(BucketExport(ObjectStore(bucket, URL), tmp_path), "r0")
    exported(BucketExport(ObjectStore(bucket, URL), tmp_path), "r1")
    assert json.loads(contents(bucket)[INDEX])["metadata"]["run"] == "r1"
    found = contents(bucket)
    assert sorted(found) == ["model.safetensors", INDEX, "notes.txt"]


@pytest.mark.parametrize("refused", ["put", "get", "delete"])
def test_a_bucket_that_cannot_be_used_is_found_at_the_start(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        """obstore, of which one request is refused."""

        def __getattr__(self, name: str) -> Any:
            def request(*arguments: Any, **options: Any) -> Any:
                if name == refused:
                    raise exceptions.PermissionDeniedError("403")
                return getattr(obstore, name)(*arguments, **options)

            return request

    monkeypatch.setattr(object_store, "obstore", Refusing())
    with pytest.raises(StoreUnavailable, match=r"s3://bucket/models/tiny/atoll-.*: 403") as refusal:
        BucketExport(ObjectStore(MemoryStore(), URL), tmp_path).check()
    assert not refusal.value.is_permanent
