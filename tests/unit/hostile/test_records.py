"""Whatever bytes lie in a record of merges, a replay makes them again or says what is wrong."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.edges import replay
from atoll_syncer.storage.journal import Journal, with_checksum, without_checksum
from unit.hostile.mutated import (
    Target,
    check_long,
    check_short,
    mutated_bytes,
    mutated_documents,
)
from unit.hostile.test_stored import store_of, trained_log, with_checksum_again
from unit.syncer.record_side import RecordedBench

TENSORS: Final = [
    TensorSpec(name="w", shape=(9, 7), dtype="float32", merge="rda"),
    TensorSpec(name="b", shape=(5,), dtype="float32", merge="mean"),
]


@cache
def record() -> tuple[tuple[str, bytes], ...]:
    """The files of one: names and bytes."""
    with TemporaryDirectory() as folder:
        sync = Sync(fragments=2, wire_up=Wire.INT8, wire_down=Wire.INT8)
        bench = RecordedBench(Path(folder), sync, build_layout(TENSORS, 2, 1))
        bench.seed()
        bench.rounds(2)
        bench.rounds(1, 1)
        root = bench.recorded_in
        files = [each for each in sorted(root.rglob("*")) if each.is_file()]
        return tuple((str(each.relative_to(root)), each.read_bytes()) for each in files)


@st.composite
def records(draw: Any) -> dict[str, bytes]:
    files = dict(record())
    names = sorted(name for name in files if "/" in name)
    name = draw(st.sampled_from(names))
    if name.endswith(".json") and draw(st.integers(0, 3)):
        document = draw(mutated_documents([without_checksum(files[name])]))
        files[name] = with_checksum_again(document, "")
    else:
        files[name] = draw(mutated_bytes([files[each] for each in (name, name, *names)]))
    return files


def replayed(files: dict[str, bytes]) -> list[replay.SliceReplay]:
    """What is said of each slice."""
    with TemporaryDirectory() as folder:
        root = Path(folder, replay.FOLDER, "0")
        for name in ("tmp", "log", "snapshots", "objects"):
            (root / name).mkdir(parents=True)
        for name, data in files.items():
            (root / name).write_bytes(data)
        try:
            stores = replay.records(Path(folder))
        except SpecError:
            return []
        return [each for shard in stores for each in replay.replayed(shard, stores[shard])]


def check(files: dict[str, bytes]) -> None:
    assert all(each.line for each in replayed(files))


RECORD: Final[Target] = (records(), check)


def test_whatever_is_recorded_is_made_again_or_known_as_damage() -> None:
    check_short(RECORD, 60)


@pytest.mark.long
def test_more_of_what_may_be_recorded() -> None:
    check_long(RECORD)


# ------------------------------------------------------------ what was found


def twice(merged: list[Any]) -> list[Any]:
    return [*merged, merged[-1]]


def backwards(merged: list[Any]) -> list[Any]:
    return merged[::-1]


@pytest.mark.parametrize("change", [twice, backwards])
def test_a_record_with_offers_twice_or_out_of_order_is_damage(
    change: Callable[[list[Any]], list[Any]],
) -> None:
    files = dict(record())
    merge = without_checksum(files["log/0-2-1.json"])
    files["log/0-2-1.json"] = with_checksum({**merge, "offers": change(merge["offers"])})
    found = [each.reason for each in replayed(files) if each.number == 2]
    assert [reason for reason in found if "in order, each once" in reason] == found != []


@pytest.mark.parametrize("name", ["\ud800", "\0", "../../etc/passwd", "x" * 5_000, ""])
def test_an_object_whose_name_is_nonsense_is_damage(name: str) -> None:
    files = dict(record())
    start = without_checksum(files["snapshots/0.json"])
    files["snapshots/0.json"] = with_checksum({**start, "head": {**start["head"], "object": name}})
    (line,) = (each.line for each in replayed(files) if each.slice == 0)
    assert line.isprintable()
    assert "it is no name of an object" in line


@pytest.mark.parametrize("slot", [None, "0"], ids=["twice", "out of order"])
def test_a_commit_with_participants_twice_or_out_of_order_is_damage(slot: str | None) -> None:
    documents = copy.deepcopy(list(trained_log()))
    commit = next(r for e in documents for r in e["records"] if r.get("participants"))
    *_, last = commit["participants"]
    commit["participants"].append({**last, "slot": slot or last["slot"]})
    journal = Journal(store_of(documents), lambda: 8.0)
    journal.read()
    assert journal.lost_entries >= 1
