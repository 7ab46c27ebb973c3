"""A checkpoint is whole with all parts, is never changed then, and decides nothing (rule 42)."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

from atoll_protos.job.run_file import NOBODY, Checkpoints, Expected, RunFile
from atoll_syncer.checkpoints import copies
from atoll_syncer.checkpoints.copies import steps_of
from atoll_syncer.duties import checkpointing
from atoll_syncer.duties.background import Background, start_threads
from atoll_syncer.duties.checkpointing import Checkpointing
from atoll_syncer.duties.metrics import ShardMetrics
from atoll_syncer.storage.files import FileStore, Store, StoreUnavailable, read_object
from atoll_syncer.storage.journal import LogSnapshot
from atoll_syncer.storage.objects import decode
from atoll_syncer.storage.versions import Collector
from unit.syncer.checkpoint_side import RUN, Parent, a_place

# ------------------------------------------------------------ what lies there


def test_a_part_holds_the_newest_version_of_each_slice_and_what_the_history_names(
    tmp_path: Path,
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    taken = parent.take(place, 1, 40)
    part, found = place.below(copies.part_name(40, 1)), copies.read_part(place, 40, 1)
    assert found is not None
    assert found.position == taken.snapshot.position
    assert found.history.heads == parent.histories[1].heads
    assert found.history.cursors == parent.histories[1].cursors
    for name in parent.histories[1].live_objects():
        assert read_object(part, name, "") == read_object(parent.stores[1], name, "")


def test_the_key_of_proofs_stays_with_the_shards(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)
    for path in place.root.rglob("*.json"):
        assert parent.histories[0].key not in path.read_text(), path


def test_a_checkpoint_is_whole_with_all_parts_of_one_run(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    first = parent.take(place, 0, 40)
    assert copies.finish(place, first, lambda: 7.0) == [1]
    other = parent.take(place, 1, 40, run="another")
    assert copies.finish(place, first, lambda: 7.0) == [1]
    assert copies.finish(place, other, lambda: 7.0) == [0]
    second = parent.take(place, 1, 40)
    assert copies.finish(place, second, lambda: 7.0) == [0]  # it is shard 0 that says so
    assert copies.finish(place, first, lambda: 7.0) == []
    assert copies.finish(place, second, lambda: 7.0) == []
    assert copies.is_whole(place, 40, RUN)
    assert not copies.is_whole(place, 40, "another")


def test_a_part_that_is_there_is_never_changed(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    first = parent.take(place, 0, 40)
    before = copies.read_part(place, 40, 0)
    for work in copies.works(place, parent.stores[0], parent.attempt(0, 40), lambda: 8.0):
        work()  # another process of the shard began before it was there
    parent.histories[0].tick += 1
    assert copies.is_taken(place, parent.attempt(0, 40))
    later = [*copies.works(place, parent.stores[0], parent.attempt(0, 40), lambda: 8.0)]
    later[-1]()
    assert copies.read_part(place, 40, 0) == before
    assert before is not None
    assert before.history.tick == first.history.tick


def test_ten_lines_of_python_read_it(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)
    folder = place.root / "step-40"
    about = json.loads((folder / "checkpoint.json").read_text())
    assert (about["tick"], about["shards"]) == (40, 2)
    sizes = {each["name"]: int(np.prod(each["shape"])) for each in about["tensors"]}
    found = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    for part in about["parts"]:
        for each in part["slices"]:
            path = folder / str(part["shard"]) / each["object"]
            content, _ = decode(bytearray(path.read_bytes()))
            for piece in each["pieces"]:
                count = piece["stop"] - piece["start"]
                values = content["master"][piece["offset"] : piece["offset"] + count]
                found[piece["tensor"]][piece["start"] : piece["stop"]] = values
    for tensor, values in zip(parent.layout.tensors, parent.whole["master"], strict=True):
        assert found[tensor.name].tobytes() == values.tobytes()


@pytest.mark.parametrize("linked", [True, False])
def test_objects_on_one_file_system_are_linked_and_others_copied(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    links = os.link

    def across(source: Path, target: Path, **more: Any) -> None:
        if not linked and "tmp" not in Path(source).parts[-2:]:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        links(source, target, **more)

    monkeypatch.setattr(os, "link", across)
    parent.checkpoint(place)
    for name in parent.histories[0].live_objects():
        copy, own = place.root / "step-40/0" / name, parent.stores[0].root / name
        assert copy.samefile(own) == linked
        assert copy.read_bytes() == own.read_bytes()


# ------------------------------------------------------------ what goes


def steps(place: FileStore, shard: int) -> list[int]:
    return [s for s in steps_of(place) if copies.read_part(place, s, shard) is not None]


def test_each_shard_removes_its_parts_of_older_ones(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    for step in (10, 20, 30, 40):
        parent.checkpoint(place, step)
    assert copies.prune(place, parent.attempt(1, 40), 2) == 40
    assert steps(place, 1) == [30, 40]
    assert steps(place, 0) == [10, 20, 30, 40]
    assert copies.prune(place, parent.attempt(0, 40), 2) == 40
    assert steps_of(place) == [30, 40]


def test_the_only_whole_one_stays(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place, 10)
    for step in (20, 30, 40, 50):
        parent.take(place, 0, step)  # shard 1 takes none
        assert copies.prune(place, parent.attempt(0, step), 1) == 10
    assert steps(place, 0) == [10, 40, 50]  # the newest attempts may become whole


def test_an_attempt_that_was_overtaken_goes(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.take(place, 0, 10)
    parent.checkpoint(place, 20)
    copies.prune(place, parent.attempt(0, 20), 3)
    assert steps(place, 0) == [20]


def test_what_another_run_left_stays_but_for_the_same_step(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    for step in (10, 20, 30):
        parent.checkpoint(place, step, run="former")
    assert parent.take(place, 0, 30).step == 30
    assert not copies.is_whole(place, 30, "former")
    parent.take(place, 1, 30)
    assert copies.finish(place, parent.attempt(0, 30), lambda: 7.0) == []
    copies.prune(place, parent.attempt(0, 30), 1)
    assert steps_of(place) == [10, 20, 30]
    assert copies.is_whole(place, 20, "former")


def test_objects_of_a_checkpoint_stay_until_it_is_copied(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.open()
    old, new = store.put([b"old"], 1), store.put([b"new"], 1)
    collector = Collector(store)
    collector.note({old})
    collector.pin({old})
    collector.note({new})
    collector.remove()
    assert store.read(old) == b"old"
    collector.pin(frozenset())
    collector.remove()
    assert store.names("objects/") == [new]


def test_an_object_that_is_still_needed_stays_after_the_copy(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.open()
    name = store.put([b"old"], 1)
    collector = Collector(store)
    collector.note({name})
    collector.pin({name})
    collector.pin(frozenset())
    collector.remove()
    assert store.read(name) == b"old"


# ------------------------------------------------------------ when


class Side:
    """The duty of one shard of the parent, without its rules."""

    def __init__(
        self,
        parent: Parent,
        place: FileStore,
        shard: int,
        end: int = 1000,
        every: int | None = 20,
    ) -> None:
        self.failed = list[BaseException]()
        self.metrics = ShardMetrics(CollectorRegistry())
        self.background = Background(
            start_threads(), self.metrics, self.failed.append, lambda full: 0
        )
        self.place, self.shard = place, shard
        self.history = parent.histories[shard]
        plan = Checkpoints(url=place.url, every=every, keep=1)
        run_file = RunFile(job="j", regions=(), steps=end, checkpoint=plan, shards=2)
        state: Any = SimpleNamespace(
            run_file=run_file,
            history=self.history,
            number=shard,
            layout=parent.layout,
            fragments=range(parent.layout.fragments),
            is_whole=True,
            over=False,
            expected=NOBODY,
            ending=SimpleNamespace(length=SimpleNamespace(steps=end)),
        )
        self.state = state
        journal = SimpleNamespace(
            clock=lambda: 7.0,
            snapshot_of=lambda history: LogSnapshot(
                position=3, checksum="c", history=history.copy()
            ),
        )
        machine: Any = SimpleNamespace(
            run_file=run_file,
            store=parent.stores[shard],
            journal=journal,
            metrics=self.metrics,
            open_place=lambda url: place,
            scratch=place.root.parent / "scratch",
        )
        self.collector = Collector(parent.stores[shard])
        self.duty = Checkpointing(state, machine, self.background, self.collector.pin)
        self.background.spawn(self.duty.work())

    def reach(self, tick: int) -> None:
        self.history.tick = tick
        self.duty.appended()

    async def until_latest(self, step: int) -> None:
        await self.until(lambda: self.duty.newest == f"{self.place.url}/step-{step}")

    async def until_taken(self, step: int) -> None:
        await self.until(lambda: copies.read_part(self.place, step, self.shard))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                assert not self.failed
                await asyncio.sleep(0.01)


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(checkpointing, "RETRY_SECONDS", 0.01)


@pytest.mark.usefixtures("short_looks")
def test_one_is_taken_when_the_tick_has_passed_a_multiple(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)

    async def play() -> None:
        sides = [Side(parent, place, shard) for shard in range(2)]
        for side in sides:
            side.reach(19)
            side.reach(21)
        for side in sides:
            await side.until_latest(20)
            side.reach(39)
        sides[0].state.is_whole = False  # what is lost or unread comes back first
        sides[0].reach(40)
        assert sides[0].duty.is_free
        sides[0].state.is_whole = True
        assert steps_of(place) == [20]
        for side in sides:
            side.reach(43)
        for side in sides:
            await side.until_latest(40)
        model = place.root / "step-40/model"
        await sides[0].until((model / "model.safetensors.index.json").exists)
        for side in sides:
            side.background.stop()

    asyncio.run(play())
    assert steps_of(place) == [40]
    assert copies.read_part(place, 40, 1) is not None


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("every", [None, 1000])
def test_one_that_somebody_asks_for_is_taken_at_once_and_once(
    tmp_path: Path, every: int | None
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)

    async def play() -> None:
        sides = [Side(parent, place, shard, every=every) for shard in range(2)]
        for side in sides:
            side.reach(40)
            assert side.duty.is_free
            side.state.expected = Expected(checkpoint=41)
            side.reach(40)
            assert side.duty.is_free  # not before the step that its name tells
        for side, tick in zip(sides, (41, 57), strict=True):
            side.reach(tick)
        for side in sides:
            await side.until_latest(41)
            side.reach(60)
            assert side.duty.is_free
            side.background.stop()

    asyncio.run(play())
    assert steps_of(place) == [41]


@pytest.mark.usefixtures("short_looks")
def test_none_is_taken_at_the_end_where_the_export_is(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)

    async def play() -> None:
        side = Side(parent, place, 0, end=40)
        side.reach(41)
        side.state.over = True
        side.reach(39)
        await asyncio.sleep(0)
        side.background.stop()

    asyncio.run(play())
    assert steps_of(place) == []


@pytest.mark.usefixtures("short_looks")
def test_trouble_is_shown_and_tried_again_and_the_next_one_is_due_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    adopts = FileStore.adopt
    fails = True

    def adopt(self: FileStore, source: Store, name: str) -> bool:
        if fails:
            raise StoreUnavailable("there", "is away", "wait")
        return adopts(self, source, name)

    monkeypatch.setattr(FileStore, "adopt", adopt)

    async def play() -> None:
        nonlocal fails
        side = Side(parent, place, 0)
        side.reach(20)
        await side.until(lambda: side.background.troubles)
        assert "there: is away" in side.background.troubles[0]
        assert "step 20" in side.background.troubles[0]
        side.history.tick = 40  # overtaken
        await side.until(lambda: side.duty.is_free)
        side.reach(41)
        await side.until(lambda: "step 40" in "".join(side.background.troubles))
        fails = False
        await side.until(lambda: copies.read_part(place, 40, 0))
        await side.until(lambda: not side.background.troubles)
        side.background.stop()

    asyncio.run(play())


class SlowPlace(FileStore):
    """Copies an object only once it may; may be away for looks."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_copy, self.is_away = threading.Event(), False

    def below(self, name: str) -> FileStore:
        part = SlowPlace(self.root / name)
        part.may_copy = self.may_copy
        return part

    def adopt(self, source: Store, name: str) -> bool:
        assert self.may_copy.wait(60)
        return super().adopt(source, name)

    def folders(self) -> list[str]:
        if self.is_away:
            raise StoreUnavailable("there", "is away", "wait")
        return super().folders()


@pytest.mark.usefixtures("short_looks")
def test_where_copying_takes_longer_than_a_step_the_next_one_waits_until_this_one_is_whole(
    tmp_path: Path,
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    slow_place = SlowPlace(place.root)

    async def play() -> None:
        quick, slow = Side(parent, place, 0), Side(parent, slow_place, 1)
        for tick in range(20, 100, 10):
            quick.reach(tick)
            slow.reach(tick)
            await quick.until_taken(20)
        await quick.until(lambda: waiting(lines))
        assert steps_of(place) == [20]
        assert not quick.duty.is_free
        assert not quick.background.troubles
        slow_place.may_copy.set()
        for side in (quick, slow):
            await side.until_latest(20)
            await side.until(lambda: side.duty.is_free)  # noqa: B023 - it is awaited here
        for side in (quick, slow):
            side.reach(91)  # of several that were due meanwhile the newest comes
        for side in (quick, slow):
            await side.until_latest(80)
            side.background.stop()

    with structlog.testing.capture_logs() as lines:
        asyncio.run(play())
    assert steps_of(place) == [80]
    first, *_ = said = waiting(lines)
    assert (first["step"], first["lacks_parts_of_shards"]) == (20, [1])
    assert len(said) == 2  # each shard once
    assert not any("left for a newer" in line["event"] for line in lines)


def waiting(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in lines if each["event"].startswith("the next checkpoint is due")]


@pytest.mark.usefixtures("short_looks")
def test_one_that_waits_goes_on_with_the_newer_step_of_a_shard_that_began_again(
    tmp_path: Path,
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)

    async def play() -> None:
        waits, again = (Side(parent, place, shard) for shard in range(2))
        waits.reach(20)
        await waits.until_taken(20)
        again.reach(41)  # its process was started after tick 40
        await again.until_taken(40)
        waits.history.tick = 39
        await waits.until(lambda: waits.duty.is_free)
        waits.reach(39)
        assert waits.duty.is_free  # not before the step
        again.reach(61)
        waits.reach(61)  # where 60 is due, and nobody has it
        for side in (waits, again):
            await side.until_latest(40)
            side.background.stop()

    asyncio.run(play())
    assert copies.read_part(place, 60, 0) is None


@pytest.mark.usefixtures("short_looks")
def test_one_that_waits_with_its_part_outlasts_a_place_that_is_away(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), SlowPlace(a_place(tmp_path).root)
    place.may_copy.set()

    async def play() -> None:
        side, other = (Side(parent, place, shard) for shard in range(2))
        side.reach(20)
        await side.until_taken(20)
        place.is_away = True
        side.reach(41)
        await side.until(lambda: side.background.troubles)
        await asyncio.sleep(0.1)
        assert not side.duty.is_free
        place.is_away = False
        other.reach(20)
        for each in (side, other):
            await each.until_latest(20)
            each.background.stop()

    asyncio.run(play())


@pytest.mark.usefixtures("short_looks")
def test_a_restored_run_does_not_take_the_one_again_with_which_it_began(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)

    async def play() -> None:
        side = Side(parent, place, 0)
        side.history.first_tick = 41
        for tick in (41, 59):
            side.reach(tick)
            assert side.duty.is_free
        side.reach(60)
        assert not side.duty.is_free
        await side.until_taken(60)
        side.background.stop()

    asyncio.run(play())
    assert steps_of(place) == [60]
