"""Whatever bytes lie in a store or a checkpoint, a reader takes them or says that they are damaged.

What has a checksum gets a right one again after the edits, so the fields behind it are looked at;
what is an object is named by its content again.
"""

import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import strategies as st

from atoll_protos.transfer.arrays import F32
from atoll_syncer.checkpoints import restoring
from atoll_syncer.checkpoints.copies import WHOLE
from atoll_syncer.checkpoints.restoring import RestoreRefusedError
from atoll_syncer.model.history import HeadVersion, History
from atoll_syncer.model.log import Committed, Seeded, from_document, to_document
from atoll_syncer.rules.runs import of_another_job
from atoll_syncer.storage import versions
from atoll_syncer.storage.files import LOG, FileStore, StoreCorrupt, object_name
from atoll_syncer.storage.journal import (
    HEARTBEAT,
    Journal,
    entry_name,
    snapshot_name,
    with_checksum,
    without_checksum,
    write,
)
from atoll_syncer.storage.object_store import open_store
from atoll_syncer.storage.objects import ObjectError, decode, encode_parts
from atoll_syncer.storage.tape import Tape
from atoll_syncer.storage.versions import read_slice
from sim.memory_store import MemoryStore
from unit.hostile.mutated import (
    Target,
    check_short,
    mutated_bytes,
    mutated_documents,
    texts,
)
from unit.syncer.checkpoint_side import Parent
from unit.syncer.shard_side import run_file, side
from unit.syncer.test_fuzz import STEPS, nothing_is_broken, training
from unit.syncer.values_side import LAYOUT

COMMIT: Final = Committed.__name__


@cache
def trained_log() -> tuple[dict[str, Any], ...]:
    """The documents of the log's entries of a shard that has trained for a while."""
    store = MemoryStore(random.Random(1))
    journal = Journal(store, lambda: 7.0)
    for entry in training().entries:
        journal.append(from_document(to_document(entry)))
    return tuple(without_checksum(store.data[name]) for name in store.names(LOG))


def store_of(documents: list[Any]) -> MemoryStore:
    """A store with these entries, each of which names the one before it."""
    store, before = MemoryStore(random.Random(1)), ""
    for number, document in enumerate(documents, 1):
        whole = document if isinstance(document, bytes) else with_checksum_again(document, before)
        store.data[entry_name(number)] = whole
        before = whole[len(b'{"check": "') :][:16].decode("latin-1")
    return store


def with_checksum_again(document: Any, before: str) -> bytes:
    """Also for a float that is not finite, as Python reads it."""
    if isinstance(document, dict) and "previous" in document:
        document = {**document, "previous": before}
    if isinstance(document, dict) and document:
        with suppress(ValueError):
            return with_checksum(document)
    return json.dumps(document).encode()


def read_log(documents: list[Any]) -> None:
    journal = Journal(store_of(documents), lambda: 8.0)
    try:
        history = journal.read()
    except StoreCorrupt:  # of a newer version of Atoll
        return
    shard_goes_on(history)
    write(MemoryStore(random.Random(2)), journal.snapshot_of(history), 9.0)


def shard_goes_on(history: History) -> None:
    """What was believed is enough for a shard to begin with, to say its state, and to be joined."""
    job = run_file(steps=STEPS)
    if of_another_job(history, job):
        return  # the process says so and ends
    one = side(job=job, fresh=False, history=history).start()
    nothing_is_broken(one)
    one.join("a-0", instance="i", run=history.run)
    for _ in range(3):
        one.wait(31)
    nothing_is_broken(one)
    one.feed(one.shard.tick_time(one.now))


@st.composite
def logs(draw: Any) -> list[Any]:
    documents = copy.deepcopy(list(trained_log()))
    number = draw(st.integers(0, len(documents) - 1))
    if draw(st.booleans()):
        documents[number] = draw(mutated_documents([documents[number]]))
    elif draw(st.booleans()):
        documents[number] = draw(mutated_bytes([with_checksum(documents[number])]))
    else:
        documents.insert(number, copy.deepcopy(draw(st.sampled_from(documents))))
    return documents


@cache
def snapshot_document() -> dict[str, Any]:
    store = MemoryStore(random.Random(1))
    journal = Journal(store_of(list(trained_log())), lambda: 8.0)
    write(store, journal.snapshot_of(journal.read()), 9.0)
    (name,) = store.names("snapshots/")
    return without_checksum(store.data[name])


def read_snapshot(document: Any) -> None:
    """It counts, or the entries do."""
    store = store_of(list(trained_log()))
    name = snapshot_name(snapshot_document()["seq"])
    store.data[name] = (
        document if isinstance(document, bytes) else with_checksum_again(document, "")
    )
    shard_goes_on(Journal(store, lambda: 8.0).read())


def read_heartbeat(data: bytes) -> None:
    store = MemoryStore(random.Random(1))
    store.data[HEARTBEAT] = data
    found = Journal(store, lambda: 8.0).last_beat()
    assert found is None or isinstance(found.count, int)  # one that is no number never changes


def read_tape(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "tape.jsonl")
        path.write_bytes(data)
        tape = Tape(path, lambda: 7.0)
        tape.open()
        for slice_, version, epoch in tape.commits({0: 1, 1: 2}):
            assert (slice_, version, epoch) == (int(slice_), int(version), int(epoch))
        assert tape.write("r", {"event": "end"}) is None
        tape.close()
        assert path.read_bytes().endswith(b"\n")


# ------------------------------------------------------------ objects


def safetensors(metadata: dict[str, str], **arrays: Any) -> bytes:
    return b"".join(bytes(each) for each in encode_parts(arrays, metadata))


def with_header(data: bytes, change: Callable[[Any], Any]) -> bytes:
    (count,) = struct.unpack_from("<Q", data)
    text = json.dumps(change(json.loads(data[8 : 8 + count]))).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + count :]


def header_of(data: bytes) -> Any:
    (count,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + count])


def files_of(sample: bytes) -> st.SearchStrategy[bytes]:
    """With another header, or other bytes."""
    deep = b"[" * 100_000
    return st.one_of(
        mutated_documents([header_of(sample)]).map(
            lambda header: with_header(sample, lambda _: header)
        ),
        mutated_bytes([sample]),
        st.just(struct.pack("<Q", len(deep)) + deep),
    )


COUNT: Final = LAYOUT.slice(0, 0).element_count
SLICE: Final = safetensors({"run": "r"}, master=np.ones(COUNT, F32), momentum=np.zeros(COUNT, F32))
STATES: Final = safetensors(
    {"run": "r"}, **{"a-0": np.zeros(9, np.uint8), "a-1": np.ones(3, np.uint8)}
)


def stored(data: bytes) -> tuple[MemoryStore, str]:
    store = MemoryStore(random.Random(1))
    name = object_name(1, hashlib.sha256(data).hexdigest())
    store.data[name] = data
    return store, name


def read_any(data: bytes) -> None:
    with suppress(ObjectError, KeyError):
        arrays, _ = decode(bytearray(data))
        assert sum(each.nbytes for each in arrays.values()) <= len(data) * (1 + len(arrays))


def read_version(data: bytes) -> None:
    store, name = stored(data)
    head = HeadVersion(number=3, epoch=1, digest="0" * 64, object=name)
    form = LAYOUT.slice(0, 0).form
    master, momentum = np.zeros(COUNT, F32), np.zeros(COUNT, F32)
    with pytest.raises(StoreCorrupt), np.errstate(all="ignore"):
        read_slice(
            store,
            head,
            master=master,
            momentum=momentum,
            form=form,
            wire_down=run_file().sync.wire_down,
        )


def read_states(data: bytes) -> None:
    store, name = stored(data)
    with suppress(StoreCorrupt):
        assert sum(map(len, versions.read_data_states(store, name).values())) <= 8 * len(data)


# ------------------------------------------------------------ checkpoints


@cache
def checkpoint_files() -> tuple[tuple[str, bytes], ...]:
    with TemporaryDirectory() as folder:
        parent = Parent(Path(folder, "parent"))
        place = FileStore(Path(folder, "place"))
        parent.checkpoint(place)
        files = [each for each in sorted(place.root.rglob("*")) if each.is_file()]
        return tuple((str(each.relative_to(place.root)), each.read_bytes()) for each in files)


@st.composite
def checkpoints_of(draw: Any) -> dict[str, bytes]:
    files = dict(checkpoint_files())
    name = draw(st.sampled_from(sorted(files)))
    data = files[name]
    if name.endswith(".json") and draw(st.booleans()):
        checked = "part.json" in name
        document = draw(
            mutated_documents([without_checksum(data) if checked else json.loads(data)])
        )
        files[name] = (
            with_checksum_again(document, "") if checked else json.dumps(document).encode()
        )
    else:
        files[name] = draw(mutated_bytes([data]))
    return files


def taken_up(files: dict[str, bytes]) -> None:
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        found = restoring.find(f"file://{folder}", open_store)
        found.data_states()
        values = {
            each.fragment: {
                "master": np.zeros(each.element_count, F32),
                "momentum": np.zeros(each.element_count, F32),
            }
            for each in LAYOUT.shard_slices(0)
        }
        if not restoring.difference(found, LAYOUT):
            restoring.fill(found, LAYOUT, 0, values)
            restoring.merges(found, LAYOUT, 0)
        assert found.tick < 1 << 63


def read_checkpoint(files: dict[str, bytes]) -> None:
    with suppress(RestoreRefusedError):
        taken_up(files)


TARGETS: Final[dict[str, Target]] = {
    "log": (logs(), read_log),
    "snapshot": (
        st.one_of(
            st.deferred(lambda: mutated_documents([snapshot_document()])),
            st.deferred(lambda: mutated_bytes([with_checksum(snapshot_document())])),
        ),
        read_snapshot,
    ),
    "heartbeat": (
        texts([{"pod": "p", "instance": "i", "epoch": 1, "count": 5}]),
        read_heartbeat,
    ),
    "tape": (
        mutated_bytes(
            [
                b'{"run": "r", "event": "commit", "slice": 1, "version": 3, "epoch": 1}\n'
                b'{"run": "r", "event": "commit", "slice": 0, "version": 2, "epoch": 1}\n' * 3,
                b'{"event": "commit", "slice": ' + b"[" * 100_000 + b"\n",
            ]
        ),
        read_tape,
    ),
    "object": (files_of(SLICE), read_any),
    "version of a slice": (files_of(SLICE), read_version),
    "data states": (files_of(STATES), read_states),
    "checkpoint": (st.deferred(checkpoints_of), read_checkpoint),
}


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_stored_is_taken_or_known_as_damage(target: str) -> None:
    check_short(TARGETS[target], 40)


# ------------------------------------------------------------ what was found


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": [0, 1 << 70], "data_offsets": [0, 0]},
        {"shape": [1], "data_offsets": [float("inf"), float("inf")]},
        {"shape": [1.0], "data_offsets": [0, 4]},
    ],
)
def test_an_array_that_there_cannot_be_is_no_object(changed: dict[str, Any]) -> None:
    def change(header: Any) -> Any:
        return {"master": {**header["master"], **changed}}

    whole = with_header(SLICE, change)
    (count,) = struct.unpack_from("<Q", whole)
    stop = changed["data_offsets"][1]
    with pytest.raises(ObjectError):
        decode(bytearray(whole[: 8 + count + (4 if stop == 4 else 0)]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("tick", -1), ("tick", 1 << 64), ("number", "1"), ("momentum", "0"), ("momentum", None)],
)
def test_a_record_whose_fields_are_of_another_kind_is_damage(field: str, value: Any) -> None:
    documents = copy.deepcopy(list(trained_log()))
    (number,) = [n for n, each in enumerate(documents) if each["records"][0]["kind"] == COMMIT][:1]
    documents[number]["records"][0][field] = value
    journal = Journal(store_of(documents), lambda: 8.0)
    journal.read()
    assert journal.lost_entries >= 1


@pytest.mark.parametrize("field", ["slice", "version", "epoch"])
@pytest.mark.parametrize("value", [None, "1", {}, float("inf"), float("nan")])
def test_a_line_of_the_tape_whose_numbers_are_none_is_no_commit(
    tmp_path: Path, field: str, value: Any
) -> None:
    line = {"event": "commit", "slice": 0, "version": 3, "epoch": 1}
    path = tmp_path / "tape.jsonl"
    path.write_text(f"{json.dumps(line)}\n{json.dumps({**line, field: value})}\n")
    assert Tape(path, lambda: 7.0).commits({0: 1}) == {(0, 3, 1)}


@pytest.mark.parametrize("field", ["digests", "objects", "due", "merges"])
def test_a_version_0_that_lacks_something_of_a_slice_is_damage(field: str) -> None:
    documents = copy.deepcopy(list(trained_log()))
    (seeded,) = [e["records"][0] for e in documents if e["records"][0]["kind"] == Seeded.__name__]
    seeded |= {"due": [0, 0], "merges": [0, 0]}
    seeded[field].pop()
    journal = Journal(store_of(documents), lambda: 8.0)
    journal.read()
    assert journal.lost_entries >= 1


@pytest.mark.parametrize(("field", "value"), [("shards", 0), ("shards", "2"), ("time", None)])
def test_a_checkpoint_whose_file_says_nonsense_is_not_whole(field: str, value: Any) -> None:
    files = dict(checkpoint_files())
    name = f"step-40/{WHOLE}"
    files[name] = json.dumps({**json.loads(files[name]), field: value}).encode()
    with pytest.raises(RestoreRefusedError, match="there is no whole checkpoint"):
        taken_up(files)


@pytest.mark.parametrize(
    "tensors", [({"name": "w"},), ({"name": 1, "shape": 5},), ({"shape": [2.5]},), ({"x": 1},)]
)
def test_a_table_of_tensors_that_is_none_is_refused_in_words(tensors: Any) -> None:
    history = History(tensors=tensors, run="r", layout_digest="d")
    assert "none (model: " in of_another_job(history, run_file())
