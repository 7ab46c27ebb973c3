"""TensorBoard's files get a run's curves, also when it is continued."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atoll_operator.local.show import curves
from atoll_operator.local.show.curves import CurveRecorder
from unit.local.test_curves import commit, step

Drawn = dict[str, list[tuple[int, float]]]


def write(out: Path, name: str, *lines: dict[str, Any]) -> None:
    path = out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps({"run": "r1", **line}) + "\n" for line in lines)


def begin(out: Path, ticks: int = 5) -> None:
    """What the processes of a run have written when it is at this tick."""
    write(out, "learners/a-0.jsonl", *(step(t, 9.0 - t, first=t == 1) for t in range(1, ticks + 1)))
    write(out, "syncer/0.tape.jsonl", commit(ticks, 20, counts=(2, 100, 20)))
    write(out, "evaluations.jsonl", {"tick": ticks, "loss": 3.5, "time": float(ticks)})


def drawn(out: Path, series: str) -> Drawn:
    """What TensorBoard shows of a series: points by tag."""
    found = EventAccumulator(str(out / "tensorboard" / series)).Reload()
    tags: list[str] = found.Tags()["scalars"]
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in tags}


def record(out: Path, *, said: list[str] | None = None, began: float = 0.0) -> CurveRecorder:
    """An `atoll run` in this folder."""
    return CurveRecorder(out, (said if said is not None else []).append, began)


def test_the_curves_lie_in_the_run_folder_while_the_run_goes_on(tmp_path: Path) -> None:
    begin(tmp_path)
    running = record(tmp_path)
    running.look()
    assert drawn(tmp_path, "a-0")["loss"] == [(1, 8.0), (2, 7.0), (3, 6.0), (4, 5.0)]
    write(tmp_path, "learners/a-0.jsonl", step(6, 1.0))
    running.close()
    assert drawn(tmp_path, "a-0")["loss"][-2:] == [(5, 4.0), (6, 1.0)]
    assert drawn(tmp_path, "held-out") == {"loss": [(5, 3.5)]}
    job = drawn(tmp_path, "job")
    assert job["commits"] == [(5, 1.0)]
    assert job["tokens"] == [(5, 50.0)]
    assert job["goodput"][0][1] == pytest.approx(20 / 100)


def test_after_a_kill_and_resume_nothing_is_drawn_twice(tmp_path: Path) -> None:
    begin(tmp_path)
    record(tmp_path).look()  # and it is killed: nothing is closed
    write(tmp_path, "learners/a-0.jsonl", *(step(t, 0.5) for t in (4, 5, 6)))
    record(tmp_path, began=1e9).close()
    before, after = [(1, 8.0), (2, 7.0), (3, 6.0)], [(4, 0.5), (5, 0.5), (6, 0.5)]
    assert drawn(tmp_path, "a-0")["loss"] == before + after  # it went back to the last commits
    assert len(list((tmp_path / "tensorboard" / "a-0").iterdir())) == 1


def test_a_trouble_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "LOOK_SECONDS", 0.01)
    said: list[str] = []
    (tmp_path / "tensorboard").write_text("no folder")
    with curves.recording(tmp_path, said.append, began=0.0):
        begin(tmp_path)
        deadline = time.monotonic() + 60
        while not said:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(said) == 1
    assert said[0].startswith("the curves wait: ")


def test_a_warning_of_a_learner_is_told_once_also_after_a_resume(tmp_path: Path) -> None:
    warning = {"event": "warning", "reason": "20 optimizer steps", "slot": "a-0", "time": 2.0}
    write(tmp_path, "learners/a-0.jsonl", warning, warning)
    write(tmp_path, "learners/b-0.jsonl", {**warning, "slot": "b-0"})
    said: list[str] = []
    running = record(tmp_path, said=said)
    running.look()
    running.close()
    assert said == ["a-0: 20 optimizer steps", "b-0: 20 optimizer steps"]
    said.clear()
    record(tmp_path, said=said, began=3.0).close()
    assert not said


def test_points_for_which_the_disk_has_no_room_are_written_when_it_has(tmp_path: Path) -> None:
    begin(tmp_path)
    said: list[str] = []
    running = record(tmp_path, said=said)
    (tmp_path / "tensorboard").write_text("no room")
    running.look()
    write(tmp_path, "learners/a-0.jsonl", step(6, 1.0))
    running.look()
    (tmp_path / "tensorboard").unlink()
    running.close()
    assert [tick for tick, _ in drawn(tmp_path, "a-0")["loss"]] == [1, 2, 3, 4, 5, 6]
    assert len(said) == 1
