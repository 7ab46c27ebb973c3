"""`atoll run --record` and `atoll replay`, up to the programs of the syncer."""

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.api.job.spec import Job
from atoll_operator.cli import replay
from atoll_operator.local.show.run_summary import RunResult
from atoll_protos.errors import SpecError

TINY = Path(__file__).resolve().parents[3] / "examples/tiny.yaml"


@pytest.mark.parametrize(
    ("words", "commits"),
    [(("--record",), 100), (("--record", "7"), 7), (("--record", "--output", "lines"), 100)],
)
def test_a_run_is_recorded_with_a_number_or_a_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], commits: int
) -> None:
    asked = list[Job]()

    def train(job: Job, *_: Any, **__: Any) -> RunResult:
        asked.append(job)
        return RunResult.COMPLETE

    monkeypatch.setattr("atoll_operator.local.atoll_run.train", train)
    done = CliRunner().invoke(cli.app, ["run", str(TINY), "--out", str(tmp_path / "out"), *words])
    assert done.exit_code == 0, done.output
    assert [each.spec.checkpoint.record for each in asked] == [commits]


def test_a_word_of_the_script_is_not_the_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    words = ["run", str(script), "--", "--record"]
    done = CliRunner().invoke(cli.app, words)
    assert str(done.exception).startswith(f"{script}: is not there")


def test_a_replay_has_the_place_and_the_endpoint_and_its_code_is_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[list[str]]()

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(words[len(replay.PROGRAM) :])
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setattr(subprocess, "run", run)
    recorded = {"job": "j", "regions": [], "steps": 1, "recorded": {"url": "s3://b", "commits": 1}}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/run.json").write_text(json.dumps(recorded))
    for place in ("s3://bucket/x", tmp_path, tmp_path / "elsewhere"):
        words = ["replay", str(place), "--endpoint", "http://here:9000"]
        assert CliRunner().invoke(cli.app, words).exit_code == 1
    places = [words[0] for words in started]
    assert places == ["s3://bucket/x", f"file://{tmp_path}", "s3://b"]
    assert {tuple(words[1:]) for words in started} == {("--endpoint", "http://here:9000")}


def test_what_holds_no_record_is_said_with_the_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = CliRunner().invoke(cli.app, ["replay", str(tmp_path)])
    assert done.exit_code == 64
    assert "holds no record; give the folder of a run" in capfd.readouterr().err
    done = CliRunner().invoke(cli.app, ["replay", str(tmp_path / "none")])
    assert "is no folder" in str(done.exception)


def test_without_the_syncers_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = CliRunner().invoke(cli.app, ["replay", "s3://bucket/x"])
    assert isinstance(done.exception, SpecError)
    assert "pip install -e '.[syncer]'" in str(done.exception)
