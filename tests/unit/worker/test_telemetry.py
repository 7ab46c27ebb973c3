import json
import time
from pathlib import Path
from typing import Any

from atoll_worker.transport import transport as module
from atoll_worker.transport.transport import Telemetry


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_learner_appends_to_the_file_of_its_slot(tmp_path: Path) -> None:
    for t_m in (1, 2):  # a second process start goes on in the same file
        telemetry = Telemetry(str(tmp_path), "us-east-0")
        telemetry.write({"run": "r", "t_m": t_m})
        telemetry.flush()
    found = lines(tmp_path / "learners" / "us-east-0.jsonl")
    assert [each["t_m"] for each in found] == [1, 2]
    assert all(each["run"] == "r" and each["time"] > 0 for each in found)


def test_what_a_script_logs_at_each_step_is_written_out_as_seldom_as_its_steps(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 1e6)
    telemetry = Telemetry(str(tmp_path), "us-east-0")
    for line in ({"t_m": 1}, {"event": "logged", "tick": 0, "values": {"a": 1.0}}):
        telemetry._flushed_at = time.time()
        telemetry.write(line)
    assert not (tmp_path / "learners").exists()
    telemetry.flush()
    assert len(lines(tmp_path / "learners" / "us-east-0.jsonl")) == 2


def test_an_observer_writes_evaluations_that_can_be_read_at_once(tmp_path: Path) -> None:
    telemetry = Telemetry(str(tmp_path), "")
    telemetry.write({"run": "r", "tick": 0, "loss": 5.5})
    telemetry.write({"run": "r", "tick": 50, "loss": 2.5})
    assert [each["loss"] for each in lines(tmp_path / "evaluations.jsonl")] == [5.5, 2.5]
    telemetry.flush()


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    telemetry = Telemetry("", "us-east-0")
    telemetry.write({"t_m": 1})
    telemetry.flush()
    assert list(tmp_path.iterdir()) == []


def test_lines_for_which_the_disk_has_no_room_are_written_whole_when_it_has(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The transport process ended, and with it the learner."""
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 400)
    (tmp_path / "learners").write_text("no folder")
    telemetry = Telemetry(str(tmp_path), "a-0")
    for number in range(100):
        telemetry.write({"event": "warning", "number": number})
    (tmp_path / "learners").unlink()
    telemetry.flush()
    kept = [line["number"] for line in lines(tmp_path / "learners" / "a-0.jsonl")]
    assert kept == [*range(len(kept))]
    assert 1 < len(kept) < 10
