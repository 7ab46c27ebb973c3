"""A record gives every version again, and a replay names the first that differs (rule 29)."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Merge as MergeKind
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.edges import replay
from atoll_syncer.edges.replay import SliceReplay
from atoll_syncer.model.effects import StoreHeld
from atoll_syncer.storage.files import FileStore, StoreFull
from unit.syncer.record_side import RecordedBench, rewrite
from unit.syncer.values_side import SLOTS, WIRES

SYNC = Sync(fragments=2)


def outcome(bench: RecordedBench) -> list[SliceReplay]:
    return list(replay.replayed(0, FileStore(bench.recorded_in)))


def differs(bench: RecordedBench) -> tuple[int | None, str]:
    """The version of slice 0 that differs, and why."""
    first = outcome(bench)[0]
    assert first.reason
    return first.number, first.reason


# ------------------------------------------------------------ equal bits


@pytest.mark.parametrize("wire_up", WIRES)
@pytest.mark.parametrize("wire_down", [Wire.BF16, Wire.INT4])
@pytest.mark.parametrize("merge", list(MergeKind))
def test_a_record_gives_every_version_again(
    tmp_path: Path, wire_up: Wire, wire_down: Wire, merge: MergeKind
) -> None:
    """Also a last version, one after it, one of no offers, and one without an outlier."""
    bench = RecordedBench(
        tmp_path, Sync(fragments=2, wire_up=wire_up, wire_down=wire_down, merge=merge)
    )
    bench.seed()
    bench.rounds(4)
    wild = [bench.offer(0, slot, 5, 10.0 if slot == SLOTS[0] else 0.01) for slot in SLOTS]
    assert len(bench.commit(0, wild).participants) == len(SLOTS) - 1
    bench.commit(0, [])
    for fragment in range(2):
        bench.commit(fragment, [bench.offer(fragment, slot, 9) for slot in SLOTS], last=True)
    bench.rounds(2, 1)  # the job has become longer
    assert [(each.count, each.reason) for each in outcome(bench)] == [(7, ""), (3, "")]


def test_another_number_of_threads_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [TensorSpec(name="w", shape=(900, 800), dtype="float32", merge="rda")]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    bench = RecordedBench(tmp_path, Sync(fragments=1), build_layout(tensors, 1, 1))
    bench.seed()
    bench.rounds(2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    assert [(each.count, each.reason) for each in outcome(bench)] == [(2, "")]


def test_what_is_recorded_changes_no_bit(tmp_path: Path) -> None:
    entries = []
    for merges in (1, 100):
        bench = RecordedBench(tmp_path / str(merges), SYNC, merges=merges)
        bench.seed()
        bench.rounds(3)
        entries.append(bench.entries)
    assert entries[0] == entries[1]


# ------------------------------------------------------------ the first that differs


def weigh_more(document: dict[str, Any]) -> None:
    document["offers"][0]["participant"]["weight"] += 1.0


def train_more(document: dict[str, Any]) -> None:
    document["offers"][0]["participant"]["tokens"] += 1


def train_more_as_the_weight_says(document: dict[str, Any]) -> None:
    first = document["offers"][0]["participant"]
    first["tokens"] += 1000
    first["weight"] = first["tokens"] ** 2 / first["steps"]


def move_more(document: dict[str, Any]) -> None:
    document["momentum"] += 0.5


def lose_one(document: dict[str, Any]) -> None:
    del document["offers"][1]


def encode_otherwise(document: dict[str, Any]) -> None:
    document["offers"][0]["encoding"] = 1e308


def store_another(document: dict[str, Any]) -> None:
    document["object"] = document["object"].replace("1-", "2-", 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (weigh_more, "the offer of a-0: 3 steps and 300 tokens weigh"),
        (train_more, "the offer of a-0: 3 steps and 301 tokens weigh"),
        (train_more_as_the_weight_says, "merged were the offers of a-0, a-1, b-0"),
        (move_more, "was published with"),
        (lose_one, "merged were the offers of a-0, b-0"),
        (encode_otherwise, "the offer of a-0: "),
        (store_another, "has another master or momentum"),
    ],
)
def test_what_a_shard_has_computed_otherwise_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(4)
    bench.rounds(1, 1)
    rewrite(bench.file(0, 3), change)
    number, reason = differs(bench)
    assert number == 3
    assert words in reason
    assert not outcome(bench)[1].reason


def test_one_byte_of_an_offer_is_named(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(3)
    path = bench.offer_of(0, 2, "a-1")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    number, reason = differs(bench)
    assert number == 2
    assert reason.startswith("the offer of a-1: objects/")
    assert "its bytes have changed" in reason
    path.unlink()
    number, reason = differs(bench)
    assert (number, "there is no such name" in reason) == (2, True)


def test_a_damaged_file_of_a_version_is_named(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(4)
    path = bench.file(0, 2)
    path.write_bytes(path.read_bytes().replace(b'"momentum": ', b'"momentum": 1'))
    number, reason = differs(bench)
    assert (number, "its checksum is wrong" in reason) == (2, True)
    path.write_bytes(bench.file(0, 3).read_bytes())
    assert differs(bench)[0] == 2
    path.unlink()
    assert differs(bench) == (2, "is not in the record, and version 3 is")


def test_the_values_of_the_beginning_are_read_by_their_digest(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    first = bench.recorded_in / bench.history.heads[0].object
    bench.rounds(2)
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.unlink()  # it is a link to what the shard has
    first.write_bytes(data)
    number, reason = differs(bench)
    assert (number, "its bytes have changed" in reason) == (0, True)


# ------------------------------------------------------------ what is recorded


def test_it_ends_by_itself_and_another_process_continues_it(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, SYNC, merges=3)
    bench.seed()
    bench.rounds(2)
    bench.begin_process(2)
    bench.rounds(3)
    assert [each.count for each in outcome(bench)] == [3]
    assert not bench.file(0, 4, 2).exists()
    assert bench.recorder._under_way == {}


def test_of_a_version_that_was_made_twice_the_durable_one_counts(tmp_path: Path) -> None:
    """The first process was killed, or deposed, before the entry that names it."""
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(1)
    state = bench.history.copy()
    bench.rounds(2)
    bench.history = state
    bench.values = bench.restored()
    bench.begin_process(2)
    for count in (2, 3, 4):
        bench.rounds(1)
        assert bench.file(0, count, 2).exists()
        assert [(each.count, each.reason) for each in outcome(bench)] == [(count, "")]
    assert bench.file(0, 3, 1).exists()


def test_a_record_does_not_continue_from_a_version_of_a_process_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The durable version of that number was made with other offers, and could not be recorded."""
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(1)
    state = bench.history.copy()
    bench.rounds(1)
    bench.history = state
    bench.values = bench.restored()
    bench.begin_process(2)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1000, free=49))
        bench.rounds(1)
    bench.begin_process(3)
    bench.rounds(1)
    assert [(each.count, each.reason) for each in outcome(bench)] == [(2, "")]
    assert not bench.file(0, 3, 3).exists()


def test_a_version_that_was_taken_back_from_a_learner_ends_it(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    seeds = bench.seed()
    bench.rounds(2)
    bench.values.keep(0, 0, seeds[0])
    making = bench.values.begin_held(StoreHeld(0, 0, 3), "run", 1)
    making.compute()
    made = making.write(bench.store)
    bench.values.committed(0)
    head = bench.history.heads[0]
    bench.history.heads[0] = type(head)(
        number=3, epoch=1, digest=made.digest, object=made.object, merges=0
    )
    bench.rounds(1)
    bench.begin_process(2)
    bench.rounds(1)
    assert [(each.count, each.reason) for each in outcome(bench)] == [(2, "")]


def test_a_full_disk_ends_it_after_one_try_and_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(2)
    tries = []

    def create(*_: object) -> bool:
        tries.append(1)
        raise StoreFull("there", "the disk is full", "make room")

    with monkeypatch.context() as patched:
        bench.before_write = lambda: patched.setattr(
            "atoll_syncer.storage.files.FileStore.create", create
        )
        bench.rounds(1)
        bench.before_write = lambda: None
        bench.rounds(1)
    bench.rounds(1, 1)
    assert len(tries) == 1
    assert [(each.count, each.reason) for each in outcome(bench)] == [(2, "")]
    full = bench.metrics.store_troubles.labels("full")
    assert full._value.get() == 1
    bench.begin_process(2)
    bench.rounds(1)  # it would follow a version that is not there
    assert [(each.count, each.reason) for each in outcome(bench)] == [(2, "")]


def test_a_record_ends_before_it_fills_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    free = [50]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1000, free=free[-1]))
    bench.rounds(2)
    free.append(49)
    bench.rounds(1)
    free.append(500)
    bench.rounds(1)
    assert [each.count for each in outcome(bench)] == [2]


def test_what_another_run_has_recorded_stays(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(2)
    bench.history.run = "other"
    bench.begin_process(2)
    bench.rounds(1)
    assert [(each.count, each.reason) for each in outcome(bench)] == [(2, "")]
    assert not bench.file(0, 3, 2).exists()


def test_a_damaged_beginning_ends_the_replay_of_its_slice_alone(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(2)
    bench.rounds(1, 1)
    start = bench.recorded_in / "snapshots/0.json"
    for change, words in (
        ({"fragments": 0}, "its beginning is of another slice"),
        ({"layout_digest": "0"}, "layout: is as only another version of Atoll cuts it"),
        ({"sync": {"fragments": "x"}}, "fragments: 'x' is no int"),
        ({"tensors": 5}, "it is damaged"),
    ):
        whole = start.read_bytes()
        rewrite(start, lambda document, change=change: document | change)  # type: ignore[misc]
        first, second = outcome(bench)
        assert (first.count, first.number, second.reason) == (0, None, "")
        assert words in first.line
        start.write_bytes(whole)


# ------------------------------------------------------------ the command


def test_the_command_names_the_first_version_that_differs_by_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = RecordedBench(tmp_path, SYNC)
    bench.seed()
    bench.rounds(2)
    bench.rounds(3, 1)
    assert replay.report(replay.records(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "shard 0 slice 0 version 2: the last of 2 with equal bits",
        "shard 0 slice 1 version 3: the last of 3 with equal bits",
        "5 versions of 2 slices have equal bits",
    ]
    rewrite(bench.file(1, 3), lambda document: document.update(time=9.0, digest="0"))
    rewrite(bench.file(0, 2), lambda document: document.update(time=8.0, digest="0"))
    rewrite(bench.file(1, 2), lambda document: document.update(time=8.5))
    assert replay.report(replay.records(tmp_path)) == replay.DIFFERS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("shard 0 slice 0 version 2: has the digest")
    assert lines[1].startswith("shard 0 slice 1 version 3: has the digest")
    assert lines[2] == "3 versions of 2 slices have equal bits"
    assert lines[3].startswith("the first that differs is shard 0 slice 0 version 2, after ")


def test_without_a_record_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no record; give the folder of a run"):
        replay.records(tmp_path)
