"""An export below the URL of a bucket is the one that a folder has (rule 27)."""

import hashlib
from pathlib import Path

import obstore
import pytest

from atoll_protos.job.companion import FILE, ExportTable
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_syncer.storage.bucket_export import BucketExport
from atoll_syncer.storage.buckets import PIECE_BYTES, Bucket
from atoll_syncer.storage.export import Export
from atoll_syncer.storage.store import StoreUnavailable
from local.stores.fault_proxy import FaultProxy
from local.stores.opened import bucket
from local.stores.servers import NO_BUCKET, Place, Server
from unit.syncer.test_export import companion, cut, model, text

# Each file goes in parts: with 2 bytes a number it has more than PIECE_BYTES.
TENSORS = [TensorSpec(name=name, shape=(1024, 4500), dtype="float32", merge="rda") for name in "ab"]
LAYOUT = build_layout(TENSORS, fragments=2, shards=1)
FILES = {f"{FILE}config.json": text(b"{}"), f"{FILE}sub/words.txt": text(b"a b")}


def exported(target: Export | BucketExport) -> None:
    """All that the shard of a job does at its end."""
    part = target.write_part("r1", 0, cut(LAYOUT, model(LAYOUT), 0))
    target.assemble("r1", LAYOUT, [part], [companion(ExportTable(), FILES)])


def contents(found: Bucket) -> dict[str, str]:
    """The digest of each name."""
    names = [each["path"] for each in obstore.list(found).collect()]
    return {name: digest(bytes(obstore.get(found, name).bytes())) for name in names}


def in_folder(folder: Path) -> dict[str, str]:
    """The digest of each file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): digest(path.read_bytes()) for path in files}


def digest(data: bytes) -> str:
    """By which contents are compared."""
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a folder has."""
    folder = tmp_path_factory.mktemp("export")
    exported(Export(folder))
    assert (folder / "model.safetensors").stat().st_size > PIECE_BYTES
    return in_folder(folder)


def test_a_bucket_has_what_a_folder_has(
    server: Server, expected: dict[str, str], tmp_path: Path
) -> None:
    place = server.place()
    target = BucketExport(bucket(place), place.url, tmp_path / "scratch")
    target.check()
    assert contents(bucket(place)) == {}
    exported(target)
    assert contents(bucket(place)) == expected
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_cannot_be_sent_is_away_until_it_can(
    behind: Place, proxy: FaultProxy, expected: dict[str, str], tmp_path: Path
) -> None:
    target = BucketExport(bucket(behind), behind.url, tmp_path / "scratch")
    proxy.answer(403, "^PUT ", count=1000)
    with pytest.raises(StoreUnavailable, match="credentials"):
        target.check()
    proxy.heal()
    target.check()
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        exported(target)
    proxy.heal()
    exported(target)
    assert contents(bucket(behind)) == expected


def test_a_bucket_that_is_not_there_is_away(server: Server, tmp_path: Path) -> None:
    place = server.place(NO_BUCKET)
    with pytest.raises(StoreUnavailable):
        BucketExport(bucket(place), place.url, tmp_path / "scratch").check()
