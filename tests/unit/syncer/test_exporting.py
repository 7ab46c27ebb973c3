"""Exports on a schedule: one whenever the tick passes a multiple; the last few stay."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from atoll_protos.run import Region, RunFile, Sync
from atoll_syncer import exporting
from atoll_syncer.exporting import ExportError, keep_taking

END = 100
RUN_FILE = RunFile(
    job="j",
    regions=(Region(name="a", learners=1),),
    steps=END,
    sync=Sync(fragments=1, period=4),
    export_every=10,
)


class Taken:
    """Stands in for `take`: makes the folder, or fails at some steps."""

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.fails, self.steps = fails, list[int]()
        self.time = 1_000_000

    async def __call__(self, run_file: RunFile, endpoints: Sequence[str], out: Path) -> int:
        step = int(out.name.removeprefix("step-"))
        self.steps.append(step)
        if step in self.fails:
            raise ExportError("shard 1 does not answer")
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
        self.time += 1
        os.utime(out, (self.time, self.time))
        return step


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def scheduled(folder: Path, ticks: Sequence[int], taken: Taken, patch: pytest.MonkeyPatch) -> None:
    """The tick takes these values, one at each look."""
    patch.setattr(exporting, "take", taken)
    patch.setattr(exporting, "LOOK_SECONDS", 0.0)

    async def run() -> None:
        left, over = list(ticks), asyncio.Event()

        def clock() -> tuple[int, int | None]:
            if len(left) == 1:
                over.set()
                return left[0], END
            return left.pop(0), END

        work = asyncio.create_task(keep_taking(RUN_FILE, ["a:1"], folder, clock))
        await over.wait()
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not work.done()
        work.cancel()

    asyncio.run(run())


def test_each_multiple_that_the_tick_passes_is_taken_once_and_three_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken()
    scheduled(tmp_path, [0, 3, 10, 12, 25, 29, 41, 52, 99, 100, 104], taken, monkeypatch)
    assert taken.steps == [10, 20, 40, 50, 90]
    assert kept(tmp_path) == ["step-40", "step-50", "step-90"]


def test_one_that_fails_is_logged_and_the_next_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Taken(fails=[10])
    scheduled(tmp_path, [0, 10, 11, 20, 21], taken, monkeypatch)
    assert taken.steps == [10, 20]
    assert kept(tmp_path) == ["step-20"]


def test_a_registrar_that_starts_again_takes_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-20").mkdir()
    taken = Taken()
    scheduled(tmp_path, [22, 23, 31, 31], taken, monkeypatch)
    assert taken.steps == [30]


def test_what_an_older_run_has_left_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (70, 80, 90):
        (tmp_path / f"step-{step}").mkdir()
        os.utime(tmp_path / f"step-{step}", (1, 1))
    scheduled(tmp_path, [0, 10, 20, 20], Taken(), monkeypatch)
    assert {"step-10", "step-20"} <= set(kept(tmp_path))
    assert len(kept(tmp_path)) == 3
