"""The command `atoll` starts fast: a verb imports only what it needs."""

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from atoll_operator import cli
from atoll_operator.api.job.parsing import parse
from atoll_operator.api.job.process_inputs import run_file
from atoll_operator.local import local_status
from atoll_protos.errors import SpecError
from unit.local.test_local_status import NOW, job, reply

HEAVY = ("torch", "grpc", "matplotlib", "kubernetes", "kopf", "numpy", "aiohttp")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TINY = str(EXAMPLES / "tiny.yaml")


def atoll(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(each) for each in words])


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("validate", str(EXAMPLES / "tiny.yaml")), ("status", "./no-such-folder")],
)
def test_verbs_that_start_nothing_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    script = (
        "import sys; from atoll_operator import cli\n"
        "try: cli.main()\n"
        f"finally: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_validate_takes_every_example_and_says_where_it_does_not_run(tmp_path: Path) -> None:
    said = {file.stem: atoll("validate", file).output for file in EXAMPLES.glob("*.yaml")}
    assert all(": valid" in each for each in said.values()), said
    assert "2 learners of 2 hosts: valid\n" in said["hosts"]
    assert "run` only\nA cluster does not accept it: spec.export: is missing" in said["tiny"]
    for name in ("quickstart", "three-regions"):
        assert not re.search("does not accept|hosts", said[name])
    file = tmp_path / "job.yaml"
    file.write_text((EXAMPLES / "script.yaml").read_text())
    found = atoll("validate", file)
    assert found.exit_code == 0  # an image may hold it
    assert f"there is no file train.py in {tmp_path}; fix command, or workingDir" in found.output
    (tmp_path / "train.py").touch()
    assert "no file" not in atoll("validate", file).output


@pytest.mark.parametrize(
    ("example", "old", "new", "error"),
    [
        ("script", "spec:\n", "spec:\n  evaluator: {everySteps: 20}\n", "spec.evaluator.template:"),
        (
            *("hosts", "args: [--batch=4, --context=64]"),
            *("command: [torchrun, --standalone, train.py]", "spec.learner.template: its command"),
        ),
    ],
)
def test_validate_refuses_what_neither_executor_can_do(
    example: str, old: str, new: str, error: str, tmp_path: Path
) -> None:
    text = (EXAMPLES / f"{example}.yaml").read_text()
    (tmp_path / "job.yaml").write_text(text.replace(old, new, 1))
    assert str(atoll("validate", tmp_path / "job.yaml").exception).startswith(error)


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["val"], ["validate\tCheck a manifest without a cluster."]),
        (["run", "x.yaml", "--chao"], ["--chaos\t", "--chaos-plan\t"]),
        (["status", "--js"], ["--json\t"]),
    ],
)
def test_kubectl_completes_the_words_of_its_plugin(
    words: list[str],
    offers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("_ATOLL_COMPLETE", "_TYPER_COMPLETE_FISH_ACTION", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.setenv(name, "")  # so that they are as before when the test is over
    monkeypatch.setattr("sys.argv", ["kubectl_complete-atoll", *words])
    with pytest.raises(SystemExit):
        cli.complete()
    *found, directive = capsys.readouterr().out.splitlines()
    assert directive == ":0"
    assert len(found) == len(offers)
    for line, offer in zip(found, offers, strict=True):
        assert line.startswith(offer)
    monkeypatch.setattr("sys.argv", ["/usr/bin/kubectl-atoll", "status", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "kubectl atoll status" in capsys.readouterr().out


def test_every_command_of_the_package_is_a_function_that_is_there() -> None:
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]
    assert project["scripts"].keys() >= {"atoll", "kubectl-atoll", "kubectl_complete-atoll"}
    for place in project["scripts"].values():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    assert atoll("--version").output == f"atoll {importlib.metadata.version('atoll')}\n"
    assert "--install-completion" in atoll("--help").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.py", "--steps", "5"), "nowhere.py: is not there"),
        (("nowhere.yaml",), "nowhere.yaml: cannot be read"),
        (("here.py",), "--steps: is missing"),
        (("here.py", "--steps", "5", "--regions", "u_s"), "spec.regions[0].name: must match"),
        (("here.py", "--steps", "5", "--gpus-per-learner", "9"), "nvidia.com/gpu: 2 learners"),
        (("here.py", "--steps", "5", "--resume"), "--resume: needs to know which run"),
        ((TINY, "--learners", "3"), "--learners: is for a script"),
        ((TINY, "--steps", "3"), "--steps: is for a script"),
        ((TINY, "--", "--lr", "1"), "-- --lr: is for a script"),
        ((TINY, "--chaos-plan", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        ((TINY, "--chaos-plan", TINY), "plan.faults: is missing"),
        (("folder",), "folder: is a folder"),
        (("folder", "--resume"), "folder/manifest.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_run_is_one_line_with_its_remedy_and_makes_no_folder(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    (tmp_path / "here.py").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("sys.argv", ["atoll", "run", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(words)
    assert "; " in last
    assert not (tmp_path / "runs").exists()


def completed(out: Path, tick: int) -> dict[str, str]:
    """A folder of a run that is complete, as it looks; its files with their texts."""
    replies = [reply("Complete", tick=tick), reply("Complete", tick=tick)]
    status = local_status.status(parse(Path(TINY).read_text()), replies, NOW).to_object()
    (out / "status.json").write_text(json.dumps(status))
    (out / "run.json").write_text(run_file(parse(Path(TINY).read_text())).to_json())
    (out / "summary.json").write_text("of then")
    return texts(out)


def texts(out: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in out.iterdir()}


def test_to_resume_a_complete_run_says_so_and_starts_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_operator.local.atoll_run.train", None)
    before = completed(tmp_path, 260)  # the clock goes on until all learners have the end
    again = ("run", TINY, "--out", tmp_path, "--resume")
    found = atoll(*again)
    assert found.exit_code == 0
    assert found.output == (
        f"the run in {tmp_path} is complete since step 260; the model is in {tmp_path}/export\n"
    )
    for change, problem in (("steps=10220", "is complete since step 260"), ("sync.period=64", "")):
        refused = atoll(*again, "--set", f"spec.{change}")
        assert isinstance(refused.exception, SpecError)
        assert refused.exception.field == ("--resume" if problem else "spec.sync")
        assert problem in refused.exception.problem
    assert texts(tmp_path) == before


def test_a_status_is_a_short_text_and_with_json_all_of_it(tmp_path: Path) -> None:
    replies = [reply(), reply()]
    found = local_status.status(job(), replies, NOW).to_object()
    (tmp_path / "status.json").write_text(json.dumps(found))
    (tmp_path / "run.json").write_text(run_file(job()).to_json())
    text = atoll("status", tmp_path).output
    assert text.startswith("tiny: Suspended, step 50 of 200 (25%)\n")
    assert len(text.splitlines()) < 6
    whole = json.loads(atoll("status", tmp_path, "--json").output)
    assert whole.keys() == found.keys()
    by_type = {each["type"]: each["status"] for each in whole["conditions"]}
    assert by_type["Progressing"] == "False"
    assert by_type["Suspended"] == "True"


def test_an_option_of_the_script_without_two_dashes_is_told_where_it_belongs() -> None:
    found = atoll("run", "train.py", "--steps", "5", "--lr", "1")
    assert found.exit_code == 2
    words = " ".join(found.output.replace("│", " ").split())
    assert "No such option: --lr" in words
    assert "Options of train.py come after two dashes: -- --lr" in words
    manifest = atoll("run", TINY, "--lr", "1")
    assert "two dashes" not in manifest.output
