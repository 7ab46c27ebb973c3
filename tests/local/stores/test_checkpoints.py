"""A bucket as a place of checkpoints: on each server the same as a folder (rule 42)."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import obstore
import pytest

from atoll_syncer.storage import checkpoints, snapshots
from atoll_syncer.storage.bucket_place import BucketPlace
from atoll_syncer.storage.store import StoreMissing, read_object
from local.stores.opened import object_store
from local.stores.servers import Server
from unit.syncer.checkpoint_side import RUN, Parent


@pytest.fixture
def place(server: Server) -> Iterator[BucketPlace]:
    """A fresh folder of a bucket, with its credentials in the environment."""
    found = server.place()
    with mock.patch.dict(os.environ, found.environment):
        yield BucketPlace(found.url, found.endpoint)


def test_a_checkpoint_in_a_bucket_is_whole_and_goes_as_one_in_a_folder(
    place: BucketPlace, tmp_path: Path
) -> None:
    parent = Parent(tmp_path)
    assert place.steps() == []
    for step in (10, 20):
        parent.checkpoint(place, step)
    assert place.steps() == [10, 20]
    part = place.part(checkpoints.part_name(20, 1))
    found = snapshots.read_newest(part)
    assert found is not None
    assert found.history.heads == parent.histories[1].heads
    for name in parent.histories[1].live_objects():
        assert read_object(part, name, "") == read_object(parent.stores[1], name, "")
    for shard in range(2):
        assert checkpoints.prune(place, parent.attempt(shard, 20), 1) == 20
    assert place.steps() == [20]
    assert checkpoints.is_whole(place, 20, RUN)
    with pytest.raises(StoreMissing):
        place.read("step-10/checkpoint.json")


def test_the_server_copies_what_is_in_the_same_bucket(
    server: Server, place: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = object_store(server.place())
    store.open()
    name = store.put([b"of a shard"], 3)
    part = place.make_part("step-10/0")
    monkeypatch.setattr(obstore, "put", None)  # what is read and written does not come in
    assert place.take(store, "step-10/0", name) == len(b"of a shard")
    assert read_object(part, name, "") == b"of a shard"
