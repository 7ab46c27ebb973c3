"""A bucket as a place of checkpoints: on each server the same as a folder (rule 42)."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import obstore
import pytest

from atoll_protos.job.layout import build_layout
from atoll_syncer.checkpoints import copies, restoring
from atoll_syncer.checkpoints.restoring import Checkpoint, RestoreRefusedError
from atoll_syncer.storage import journal
from atoll_syncer.storage.export import INDEX
from atoll_syncer.storage.files import StoreMissing, copy_object, read_object
from atoll_syncer.storage.journal import HEARTBEAT, LogSnapshot
from atoll_syncer.storage.object_store import ObjectStore, open_store
from local.stores.opened import object_store
from local.stores.servers import Server
from unit.syncer.checkpoint_side import RUN, STATE, Parent
from unit.syncer.values_side import TENSORS


@pytest.fixture
def place(server: Server) -> Iterator[ObjectStore]:
    """A fresh folder of a bucket, with its credentials in the environment."""
    found = server.place()
    with mock.patch.dict(os.environ, found.environment):
        store = open_store(found.url, found.endpoint)
        assert isinstance(store, ObjectStore)
        yield store


def test_a_checkpoint_in_a_bucket_is_whole_and_goes_as_one_in_a_folder(
    place: ObjectStore, tmp_path: Path
) -> None:
    parent = Parent(tmp_path)
    assert copies.steps_of(place) == []
    for step in (10, 20):
        parent.checkpoint(place, step)
        attempt = parent.attempt(0, step)
        restoring.render(place, attempt, tmp_path / "scratch", parent.sync.wire_down)
    assert copies.steps_of(place) == [10, 20]
    part, found = place.below(copies.part_name(20, 1)), copies.read_part(place, 20, 1)
    assert found is not None
    assert found.history.heads == parent.histories[1].heads
    for name in parent.histories[1].live_objects():
        assert read_object(part, name, "") == read_object(parent.stores[1], name, "")
    for shard in range(2):
        assert copies.prune(place, parent.attempt(shard, 20), 1) == 20
    assert copies.steps_of(place) == [20]
    assert copies.is_whole(place, 20, RUN)
    assert json.loads(bytes(place.read(f"step-20/model/{INDEX}")))["metadata"]["tick"] == 40
    for name in (copies.WHOLE, f"model/{INDEX}", "model/model.safetensors"):
        with pytest.raises(StoreMissing):
            place.read(f"step-10/{name}")


def test_the_server_copies_what_is_in_the_same_bucket(
    server: Server, place: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = object_store(server.place())
    store.open()
    name = store.put([b"of a shard"], 3)
    part = place.below("step-10/0")
    part.open()
    monkeypatch.setattr(obstore, "put", None)  # what is read and written does not come in
    assert part.adopt(store, name)
    assert read_object(part, name, "") == b"of a shard"


def test_a_run_begins_with_a_checkpoint_in_a_bucket_or_with_what_a_job_has_left_there(
    server: Server, place: ObjectStore, tmp_path: Path
) -> None:
    def found(url: str) -> Checkpoint:
        return restoring.find(url, lambda each: open_store(each, server.place().endpoint))

    parent = Parent(tmp_path)
    for step in (10, 20):
        parent.checkpoint(place, step)
    for url in (place.url, f"{place.url}/step-20"):
        checkpoint = found(url)
        assert checkpoint.url == f"{place.url}/step-20"
        assert [each.heads for each in checkpoint.histories] == [x.heads for x in parent.histories]
        assert checkpoint.data_states() == {"a-0": STATE + b"\1"}
    with pytest.raises(RestoreRefusedError, match="there is no whole checkpoint"):
        found(f"{place.url}/nothing")
    name = parent.histories[0].heads[0].object
    place.remove(f"step-20/0/{name}")
    layout = build_layout(TENSORS, 1, 1)
    with pytest.raises(
        RestoreRefusedError, match="no such name; begin a new job with the one before"
    ):
        restoring.fill(found(place.url), layout, 0, {})

    left = place.below("uid")
    for shard, history in enumerate(parent.histories):
        part = left.below(str(shard))
        part.open()
        for name in history.live_objects():
            copy_object(parent.stores[shard], part, name)
        journal.write(part, LogSnapshot(position=9, checksum="c", history=history), 7.0)
        part.replace(HEARTBEAT, b"{}")
    checkpoint = found(left.url)
    assert (checkpoint.url, checkpoint.tick, len(checkpoint.parts)) == (left.url, 40, 2)
    assert found(left.url).cursors == {"a-0": 101, "a-1": 200}
