"""Bad input is one line that names the field and the remedy; healthy processes go on."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_protos.errors import SpecError
from local.background import running
from local.command import TINY, json_lines

SHORT = ("--set", "spec.steps=30", "--set", "spec.evaluator=")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("spec.stepz=3", "spec.stepz"),
        ("spec.steps=0", "spec.steps"),
        ("spec.tokens=5", "spec.steps"),
        ("spec.sync.quorum=9", "spec.sync.quorum"),
        ("spec.sync.fragments=17", "spec.sync.fragments"),
        ("spec.sync.overlap=16", "spec.sync.overlap"),
        ("spec.sync.wire.up=int3", "spec.sync.wire.up"),
        ("spec.sync.outer.learningRate=fast", "spec.sync.outer.learningRate"),
        ("spec.syncer.region=moon", "spec.syncer.region"),
        ("spec.syncer.shards=none", "spec.syncer.shards"),
        ("spec.regions=[]", "spec.regions"),
        ("spec.regions=[{name: a}, {name: a}]", "spec.regions"),
        ("metadata.name=Tiny_1", "metadata.name"),
        ("steps=3", "--set steps=3"),
    ],
)
def test_a_wrong_field_is_named_with_its_remedy(
    change: str,
    field: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["atoll", "run", str(TINY), "--out", str(tmp_path / "out"), "--set", change]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"{field}: ") or stderr.startswith(f"{field}[")
    assert "; " in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["- a list", "kind: Pod", "a: [", "\x00"])
def test_a_file_that_is_no_manifest_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(SpecError):
        cli.read_job(file)


def test_validate_says_that_all_is_well() -> None:
    result = CliRunner().invoke(cli.app, ["validate", str(TINY)])
    assert result.exit_code == 0
    assert "valid" in result.output


def failed_because(out: Path) -> str:
    """The reason of the condition Failed, which must be True."""
    (failed,) = (
        each
        for each in json.loads((out / "status.json").read_text())["conditions"]
        if each["type"] == "Failed"
    )
    assert failed["status"] == "True"
    return str(failed["reason"])


def test_data_that_cannot_be_read_ends_the_run_as_bad_input(tmp_path: Path) -> None:
    container = '[{args: ["--data", "/no/such/file"]}]'
    change = ("--set", f"spec.learner.template.spec.containers={container}")
    with running(TINY, tmp_path / "out", *SHORT, *change) as run:
        code, stderr = run.finish()
    assert code == 2
    assert failed_because(tmp_path / "out") == "BadInput"
    assert "/no/such/file matches no file; correct the path" in stderr


def test_a_learner_with_another_model_is_given_up_and_the_others_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    other = "{name: eu-west, podOverrides: {args: ['--layers', '3']}}"
    regions = ("--set", f"spec.regions=[{{name: us-east}}, {other}]")
    together = ("--set", "spec.syncer.startSeconds=1800")  # the job is not over before both came
    with running(TINY, out, *SHORT, *regions, *together, "--allow-refused") as run:
        code, stderr = run.finish()
    assert code == 0, stderr
    given_up = [name for name in ("us-east-0", "eu-west-0") if f"{name} is given up" in stderr]
    assert len(given_up) == 1  # the learner that came second
    assert "exit code 65" in stderr
    assert "model" in stderr
    survivor = ({"us-east-0", "eu-west-0"} - set(given_up)).pop()
    assert json_lines(out / "learners" / f"{survivor}.jsonl")[-1]["reason"] == "finished"


def test_a_script_that_always_fails_is_given_up(tmp_path: Path) -> None:
    container = "[{command: [python, -c, 'raise ValueError(17)']}]"
    change = ("--set", f"spec.learner.template.spec.containers={container}")
    with running(TINY, tmp_path / "out", *SHORT, *change) as run:
        code, stderr = run.finish()
    assert code == 1
    assert failed_because(tmp_path / "out") == "ProcessFailed"
    assert "ValueError: 17" in stderr
