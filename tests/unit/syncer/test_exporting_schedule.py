"""Exports on a schedule follow the job's present length, which may have grown."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from atoll_protos.run import Region, RunFile
from atoll_syncer import exporting

JOB = RunFile(job="x", regions=(Region(name="a", learners=1),), steps=20, export_every=10)


@pytest.mark.parametrize(("end", "taken"), [(20, [10]), (40, [10, 20, 30]), (None, [10, 20, 30])])
def test_exports_are_taken_up_to_the_end_that_the_job_has_now(
    end: int | None, taken: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "LOOK_SECONDS", 0.0)
    ticks, steps = iter([5, 12, 15, 22, 31]), list[int]()

    async def take(run_file: RunFile, endpoints: Any, out: Path) -> int:
        steps.append(int(out.name.removeprefix("step-")))
        return 0

    monkeypatch.setattr(exporting, "take", take)

    def clock() -> tuple[int, int | None]:
        tick = next(ticks, None)
        if tick is None:
            raise EOFError
        return tick, end

    with pytest.raises(EOFError):
        asyncio.run(exporting.keep_taking(JOB, exporting.Reach(("x",)), tmp_path, clock))
    assert steps == taken


def test_what_a_killed_process_has_left_half_written_is_removed_at_the_next_start(
    tmp_path: Path,
) -> None:
    left, whole = tmp_path / ".step-10.0a1b2c3d.tmp", tmp_path / "step-10"
    for folder in (left, whole):
        folder.mkdir()
        (folder / "part").write_bytes(b"values")

    def clock() -> tuple[int, int | None]:
        raise EOFError

    with pytest.raises(EOFError):
        asyncio.run(exporting.keep_taking(JOB, exporting.Reach(("x",)), tmp_path, clock))
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]


def test_the_last_three_exports_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "LOOK_SECONDS", 0.0)
    ticks = iter([0, 10, 20, 30, 40, 50])

    def written(out: Path) -> int:
        out.mkdir()
        at = int(out.name.removeprefix("step-"))
        os.utime(out, (at, at))
        return at

    async def take(run_file: RunFile, endpoints: Any, out: Path) -> int:
        return written(out)

    def clock() -> tuple[int, int | None]:
        try:
            return next(ticks), None
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(exporting, "take", take)
    with pytest.raises(EOFError):
        asyncio.run(exporting.keep_taking(JOB, exporting.Reach(("x",)), tmp_path, clock))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-30", "step-40", "step-50"]
