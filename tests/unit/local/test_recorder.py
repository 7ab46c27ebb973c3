"""TensorBoard's files and Weights & Biases get a run's curves, also when it is gone on with."""

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atoll_operator.local import recorder, trackers
from atoll_operator.local.recorder import Recorder
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
    write(out, "syncer/0.tape.jsonl", commit(ticks, 20))
    write(out, "evaluations.jsonl", {"tick": ticks, "loss": 3.5, "time": float(ticks)})


def drawn(out: Path, series: str) -> Drawn:
    """What TensorBoard shows of a series: points by tag."""
    found = EventAccumulator(str(out / "tensorboard" / series)).Reload()
    tags: list[str] = found.Tags()["scalars"]
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in tags}


def record(out: Path, *, said: list[str] | None = None, began: float = 0.0, **env: str) -> Recorder:
    """An `atoll run` in this folder, with these variables."""
    return Recorder(out, (said if said is not None else []).append, env, began)


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
    assert job["tokens"] == [(5, 50.0), (6, 60.0)]
    assert job["goodput"][0][1] == pytest.approx(20 / 2 / 50)


def test_lines_of_all_files_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    write(tmp_path, "learners/a-0.jsonl", *(step(t, 1.0, first=t == 1) for t in range(1, 9)))
    write(tmp_path, "syncer/0.tape.jsonl", commit(2, 5), commit(6, 5))
    record(tmp_path).close()
    assert drawn(tmp_path, "job")["tokens"] == [(2, 20.0), (6, 60.0), (8, 80.0)]


def test_after_a_kill_and_resume_the_curves_go_on_and_nothing_is_drawn_twice(
    tmp_path: Path,
) -> None:
    begin(tmp_path)
    killed = record(tmp_path)
    killed.look()  # and it is killed: nothing is closed
    write(tmp_path, "learners/a-0.jsonl", *(step(t, 0.5) for t in (4, 5, 6)))
    resumed = record(tmp_path, began=1e9)
    resumed.close()
    assert drawn(tmp_path, "a-0")["loss"] == [
        *((1, 8.0), (2, 7.0), (3, 6.0)),  # then back to the last commits
        *((4, 0.5), (5, 0.5), (6, 0.5)),
    ]
    assert len(list((tmp_path / "tensorboard" / "a-0").iterdir())) == 1


def test_a_line_that_is_half_written_is_drawn_when_it_is_whole(tmp_path: Path) -> None:
    begin(tmp_path)
    text = json.dumps({"run": "r1", **step(6, 1.0)})
    with (tmp_path / "learners/a-0.jsonl").open("a") as file:
        file.write(text[:20])
        file.flush()
        running = record(tmp_path)
        running.look()
        file.write(text[20:] + "\n")
    running.close()
    assert drawn(tmp_path, "a-0")["loss"][-1] == (6, 1.0)


class FakeWandb(ModuleType):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[dict[str, float]] = []
        self.calls: dict[str, int] = defaultdict(int)

    def init(self, **arguments: Any) -> "FakeWandb":
        self.begun.append(arguments)
        return self

    def define_metric(self, *names: str, **more: str) -> None:
        self.calls["define_metric"] += 1

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.calls["finish"] += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    module = FakeWandb()
    monkeypatch.setattr(trackers, "wandb_module", lambda: module)
    monkeypatch.setattr(recorder, "wandb_module", lambda: module)
    return module


def test_wandb_gets_one_run_for_the_job_whose_group_is_the_id_of_the_training(
    tmp_path: Path, wandb: FakeWandb
) -> None:
    begin(tmp_path)
    record(tmp_path, WANDB_MODE="offline", WANDB_PROJECT="mine").close()
    (begun,) = wandb.begun
    assert (begun["id"], begun["group"], begun["project"]) == ("r1", "r1", "mine")
    assert begun["resume"] == "allow"
    assert begun["name"] == tmp_path.name
    by_tick = {values["tick"]: values for values in wandb.logged}
    assert by_tick[2]["loss/a-0"] == 7.0
    last = [values for values in wandb.logged if values["tick"] == 5]
    assert {key for values in last for key in values} >= {
        *("loss/a-0", "loss/held-out", "goodput/job", "commits/job", "tokens/job"),
    }
    assert wandb.calls["finish"] == 1


def test_wandb_gets_only_what_is_new_when_a_run_is_gone_on_with(
    tmp_path: Path, wandb: FakeWandb
) -> None:
    begin(tmp_path)
    record(tmp_path, began=4.0, WANDB_API_KEY="k").close()
    assert {values["tick"] for values in wandb.logged} == {4, 5}


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        ({}, False),
        ({"WANDB_API_KEY": "k"}, True),
        ({"WANDB_MODE": "offline"}, True),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, False),
        ({"WANDB_DISABLED": "true", "WANDB_API_KEY": "k"}, False),
    ],
)
def test_wandb_is_asked_for_by_its_variables(env: dict[str, str], asked: bool) -> None:
    assert trackers.wandb_asked_for(env) is asked


def test_that_wandb_is_asked_for_and_not_installed_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    begin(tmp_path)
    said: list[str] = []
    running = record(tmp_path, said=said, WANDB_API_KEY="k")
    running.look()
    running.close()
    assert said == ["Weights & Biases gets nothing: wandb is not installed"]
    assert drawn(tmp_path, "held-out")


def test_the_installed_wandb_is_the_one_that_python_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("here = True")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert trackers.wandb_module().here


def test_a_trouble_with_the_curves_is_told_and_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LOOK_SECONDS", 0.01)
    said: list[str] = []
    with recorder.recording(tmp_path, said.append, began=0.0):
        begin(tmp_path)
        (tmp_path / "tensorboard").write_text("no folder")
        deadline = time.monotonic() + 60
        while not said:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(said) == 1
    assert said[0].startswith("the curves wait: ")


def test_a_warning_of_a_learner_is_told_when_it_comes_once_and_not_again_after_a_resume(
    tmp_path: Path,
) -> None:
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
