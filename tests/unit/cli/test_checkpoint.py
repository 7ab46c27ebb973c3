"""`atoll checkpoint`: it asks for one, waits until it is whole, or says why not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from atoll_operator import cli
from atoll_operator.api.status.conditions import Facts, Phase, PhaseKind, conditions_of
from atoll_operator.local import local_status, run_folder
from atoll_operator.local.run_files import ASKED_FILE, RUN_FILE, STATUS_FILE
from unit.local.test_local_status import NOW, job, reply

PLACE = "file:///checkpoints"


def status(newest: int = 0, phase: PhaseKind = PhaseKind.RUNNING, trouble: str = "") -> Any:
    """Of a run at step 50 with this newest checkpoint; 0: there is none."""
    found = local_status.status(job(), [reply(), reply()], NOW)
    why = Phase(kind=phase, reason="Trained" if phase.over else "Running", message="")
    facts = Facts(phase=why, shard_states=(), troubles=(trouble,) if trouble else ())
    update: dict[str, Any] = {"conditions": list(conditions_of(facts))}
    update["checkpoint"] = f"{PLACE}/step-{newest}" if newest else None
    return found.model_copy(update=update).to_object()


def atoll(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["checkpoint", *map(str, words)])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run that trains."""
    (tmp_path / RUN_FILE).write_text("{}")
    (tmp_path / STATUS_FILE).write_text(json.dumps(status(newest=40)))
    with run_folder.running(tmp_path):
        yield tmp_path


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """What happens while the command waits."""

    def play(happens: Callable[[], object]) -> None:
        slept = SimpleNamespace(sleep=lambda seconds: happens(), monotonic=lambda: 0.0)
        monkeypatch.setattr("atoll_operator.cli.lifecycle.time", slept)

    return play


Meanwhile = Callable[[Callable[[], object]], None]


@pytest.mark.parametrize("taken", [51, 60])
def test_of_a_run_folder_a_step_is_asked_for_and_a_later_one_will_do(
    run: Path, meanwhile: Meanwhile, taken: int
) -> None:
    def take() -> None:
        assert (run / ASKED_FILE).read_text() == "51\n"
        (run / STATUS_FILE).write_text(json.dumps(status(newest=taken)))

    meanwhile(take)
    done = atoll(run)
    assert (done.exit_code, done.output) == (0, f"{PLACE}/step-{taken}\n")


def test_without_a_whole_one_it_says_what_is_wrong(run: Path) -> None:
    (run / STATUS_FILE).write_text(json.dumps(status(trouble="shard 1: no room")))
    said = str(atoll(run, "--timeout", "0").exception)
    assert "no checkpoint is whole after 0 s: StoreTrouble: shard 1: no room" in said


def test_a_run_that_ends_meanwhile_or_has_ended_takes_none(run: Path, meanwhile: Meanwhile) -> None:
    over = json.dumps(status(phase=PhaseKind.COMPLETE))
    meanwhile(lambda: (run / STATUS_FILE).write_text(over))
    for _ in range(2):
        said = str(atoll(run).exception)
        assert "is Complete, and takes no checkpoint" in said
        assert f"--resume-from {run / 'commits'}" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--resume-from", "none"], "is no folder"),
        (["--resume-from", ".", "--resume"], "leave one"),
    ],
)
def test_a_place_that_no_run_can_be_taken_up_from_is_refused(
    flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = Path(__file__).parents[3] / "examples" / "tiny.yaml"
    done = CliRunner().invoke(cli.app, ["run", str(tiny), "--out", "more", *flags])
    assert done.exit_code != 0
    assert words in str(done.exception) + done.output
