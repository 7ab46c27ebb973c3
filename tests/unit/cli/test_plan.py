"""`atoll plan`: the figures of docs/sizing.md for a manifest, as a person reads them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_protos.errors import SpecError


def test_a_region_that_is_not_there_is_refused(file: Path) -> None:
    with pytest.raises(SpecError, match="--link: the job has no region asia; give one of us, eu"):
        said(file, "--parameters", "1B", "--link", "asia=1")


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    regions = [{"name": "us", "learners": 1}, {"name": "eu", "learners": 4}]
    spec = {"steps": 3600, "regions": regions}
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**kind, "metadata": {"name": "big"}, "spec": spec}))
    return path


def said(*words: str | Path) -> str:
    done = CliRunner().invoke(cli.app, ["plan", "--step-time", "1", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_a_plan_that_holds_ends_with_0(file: Path) -> None:
    words = ["--parameters", "100M", "--step-time", "1", "--link", "eu=20,80"]
    done = CliRunner().invoke(cli.app, ["plan", *words, str(file)])
    assert done.stdout.splitlines()[-1].startswith("It holds. The tightest limit is ")
    assert done.exit_code == 0


@pytest.fixture
def numbered(file: Path) -> Path:
    """The same job, whose manifest has the numbers itself."""
    document = yaml.safe_load(file.read_text())
    document["spec"]["sizing"] = {"parameters": 10**9, "stepMilliseconds": 1000}
    eu = document["spec"]["regions"][1]
    eu["link"] = {"megabitsPerSecond": 2000, "roundTripMilliseconds": 90}
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_manifest_can_have_the_numbers_and_flags_come_first(numbered: Path) -> None:
    def plan(*words: str) -> Any:
        found = CliRunner().invoke(cli.app, ["plan", str(numbered), "--json", *words])
        return json.loads(found.stdout)

    own = plan()
    assert (own["parameters"], own["step_seconds"]) == (10**9, 1.0)
    assert own["traffic"]["borders"][1]["link_share"] == pytest.approx(4 * 16 / 24 / 2)
    other = plan("--parameters", "2B", "--step-time", "4", "--link", "eu=1")
    assert (other["parameters"], other["step_seconds"]) == (2 * 10**9, 4.0)
    assert other["traffic"]["borders"][1]["link_share"] == pytest.approx(4 * 32 / 24 / 4)


def test_a_run_warns_of_what_will_not_hold_and_goes_on(
    numbered: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = list[Any]()

    def train(*given: Any, **_: Any) -> int:
        ran.append(given)
        return 0

    monkeypatch.setattr("atoll_operator.local.atoll_run.train", train)
    words = ["run", str(numbered), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli.app, words)
    assert "warning: eu: 133% of its link on average" in done.stderr
    assert len(ran) == 1
    quiet = CliRunner().invoke(cli.app, [*words, "--set", "spec.sizing="])
    assert "warning" not in quiet.output
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "--parameters: '' is no number; give one as 350M"),
        (("--parameters", "many"), "'many' is no number"),
        (("--parameters", "0"), "'0' is no number"),
        (("--parameters", "9" * 400), "is no number"),
        (("--parameters", "1B", "--step-time", "inf"), "--step-time: 'inf' is no number above 0"),
        (("--parameters", "1B", "--step-time", "0"), "--step-time: '0' is no number above 0"),
        (("--parameters", "1B", "--link", "eu"), "'eu' is no link"),
        (("--parameters", "1B", "--link", "eu=0,10"), "'eu=0,10' is no link"),
        (("--parameters", "1B", "--link", "eu=1", "--link", "eu=2"), "eu is given twice"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(
    words: tuple[str, ...], problem: str, file: Path
) -> None:
    with pytest.raises(SpecError, match=problem):
        said(file, *words)


def test_the_plan_that_the_documents_print_is_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/sizing.md").read_text()
    (printed,) = re.findall(
        r"<!-- printed -->\n```sh\n(.*?)```\n\n```\n(.*?)```\n", page, re.DOTALL
    )
    command, text = printed
    _, *words = shlex.split(command.replace("\\\n", " "))
    assert CliRunner().invoke(cli.app, words).stdout == text
