"""`atoll plan`: the figures of docs/sizing.md for a manifest, as a person reads them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.sizing.needs import Chips, needs
from atoll_operator.sizing.traffic import Given
from atoll_protos.errors import SpecError
from unit.sizing.cases import BILLION, given, spec_of


def test_the_two_examples_of_the_documents_come_out() -> None:
    small = needs(spec_of({"eu": 4}), given())
    machines = small.machines
    assert small.traffic.up == pytest.approx(0.67e9, rel=0.01)
    assert machines.learner_memory == pytest.approx(8.8e9, rel=0.01)
    assert machines.learner_cores == pytest.approx(0.25)
    assert machines.learner_thread == pytest.approx(0.11, rel=0.02)
    assert machines.shard_network == pytest.approx(2.7e9, rel=0.02)
    assert machines.shard_cores == pytest.approx(1.4, rel=0.02)
    assert machines.shards_least == 1
    assert machines.shard_memory == pytest.approx(11.0e9, rel=0.01)
    assert machines.shard_writes == pytest.approx(0.33e9, rel=0.02)
    assert small.hours == 1
    large = needs(spec_of({"eu": 8}), Given(parameters=12 * BILLION, step_seconds=10.0))
    assert large.traffic.up == pytest.approx(0.8e9)
    assert large.machines.learner_memory == pytest.approx(106e9)
    assert large.machines.shard_network == pytest.approx(6.4e9)
    assert large.machines.shards_least == 2
    assert large.machines.shard_memory == pytest.approx(138e9, rel=0.01)
    assert large.machines.shard_room == pytest.approx(240e9, rel=0.01)


def test_a_job_with_a_bucket_knows_its_requests_as_the_documents_count_them() -> None:
    storage = {"type": "ObjectStore", "url": "s3://bucket/x"}
    asked = Given(parameters=12 * BILLION, step_seconds=10.0)
    spec = spec_of({"eu": 8}, syncer={"shards": 8, "storage": storage})
    writes = needs(spec, asked).machines.store_writes_per_day
    assert writes == pytest.approx(8 * 8640 * (8 + 1) + 8 * 43200)
    assert needs(spec_of({"eu": 8}), asked).machines.store_writes_per_day is None


def test_money_is_for_what_leaves_a_region() -> None:
    """An int4 offer leaves eu, and the bf16 answer leaves us."""
    spec = spec_of({"us": 1, "eu": 2}, steps=86_400 * 10, sync={"wire": {"up": "int4"}})
    found = needs(spec, given(), prices={"us": 0.02, "eu": 0.08})
    us, eu = found.regions
    assert eu.money_per_day == pytest.approx(eu.out_bytes_per_day / 1e9 * 0.08)
    assert us.out_bytes_per_day == pytest.approx(2 * 16 * BILLION / 24 / 8 * 86_400)
    assert us.money == pytest.approx(10 * us.out_bytes_per_day / 1e9 * 0.02)
    assert found.money == pytest.approx(10 * found.money_per_day)
    assert needs(spec, given(), prices={"us": 0.02}).regions[1].money_per_day is None


def test_a_job_in_tokens_ends_by_what_its_learners_train_in_a_step() -> None:
    regions = [
        {"name": "us", "learners": 2, "tokensPerStep": 1000},
        {"name": "eu", "learners": 1},
    ]
    spec = spec_of({}, steps=None, tokens=7_200_000, regions=regions)
    assert needs(spec, given()).hours is None
    found = needs(spec, given(), tokens_per_step=500)  # of eu alone
    assert found.tokens_per_second == 2500
    assert found.hours == pytest.approx(7_200_000 / 2500 / 3600)
    with pytest.raises(SpecError, match="--tokens-per-step: every region of the manifest has"):
        needs(spec_of({}, regions=regions[:1]), given(), tokens_per_step=500)


def test_recovery_has_the_measured_seconds_and_those_of_the_values_over_the_link() -> None:
    spec = spec_of({"us": 1, "eu": 2})
    chips = Chips(per_learner=1000, failures_per_year=1.0)
    near = needs(spec, given(), chips=chips).goodput
    far = needs(spec, given({"eu": (4.0, 0.0)}), chips=chips).goodput
    assert near is not None
    assert far is not None
    assert near.away_seconds == 35
    assert far.away_seconds == pytest.approx(35 + 16 / 2)
    assert near.hours_between_failures == pytest.approx(8.766)


@pytest.mark.parametrize("flag", ["--link", "--egress"])
def test_a_region_that_is_not_there_is_refused(flag: str, file: Path) -> None:
    with pytest.raises(SpecError, match=f"{flag}: the job has no region asia; give one of us, eu"):
        said(file, "--parameters", "1B", flag, "asia=1")


ROOT = Path(__file__).resolve().parents[3]
PRINTED = r"<!-- printed -->\n```sh\n(.*?)```\n\n```\n(.*?)```\n"
CHIPS = ("--chips-per-learner", "8", "--failures-per-chip-year", "1")


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
    if done.exception:
        raise done.exception
    return done.stdout


def test_the_text_has_links_bill_failures_machines_and_what_helps(file: Path) -> None:
    words = ["--link", "eu=20,80", "--egress", "eu=0.1", "--tokens-per-step", "2k"]
    words += ["--chips-per-learner", "1k", "--failures-per-chip-year", "1"]
    text = said(file, "--parameters", "12B", *words)
    head, *lines = text.splitlines()
    assert head == (
        "big: 12,000,000,000 parameters, 5 learners, steps of 1 s, 1 h to the end,"
        " 10,000 tokens a second"
    )
    assert "The busiest site is us, where the shards are." in lines
    assert any(line.startswith("Learners never wait for the network;") for line in lines)
    assert any(line.startswith("A learner fails every 8.77 h, is away for 73 s") for line in lines)
    for name in ("eu", "all", "goodput", "uptime", "each learner, beside its training"):
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert "Will not hold: eu: 160% of its link on average" in text
    assert "spec.syncer.shards from 1 to 13" in text.partition("what helps")[2]


def test_the_columns_of_a_table_end_below_each_other(file: Path) -> None:
    lines = said(file, "--parameters", "1B", "--link", "eu=200,80").splitlines()
    head, us, eu = lines[2:5]
    assert len(eu) == len(head) == head.index("lanes") + 5
    for column in ("learners", "out Gbit/s", "in Gbit/s"):
        end = head.index(column) + len(column)
        assert {row[end - 1].isdigit() and row[end] == " " for row in (us, eu)} == {True}


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
    assert own["regions"][1]["border"]["link_share"] == pytest.approx(4 * 16 / 24 / 2)
    other = plan("--parameters", "2B", "--step-time", "4", "--link", "eu=1")
    assert (other["parameters"], other["step_seconds"]) == (2 * 10**9, 4.0)
    assert other["regions"][1]["border"]["link_share"] == pytest.approx(4 * 32 / 24 / 4)


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


def test_a_step_time_is_needed_somewhere(file: Path) -> None:
    done = CliRunner().invoke(cli.app, ["plan", str(file), "--parameters", "1B"])
    assert str(done.exception).startswith("--step-time: is missing; give it, or spec.sizing")


def test_json_has_every_figure(file: Path) -> None:
    found = json.loads(said(file, "--parameters", "1.5B", "--json"))
    assert found["parameters"] == 1_500_000_000
    assert found["regions"][1]["border"]["link_share"] is None
    assert found["goodput"] is None
    assert found["limits"][0]["used"] > 0


def test_the_size_can_come_from_the_models_files(file: Path, tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 4))}, tmp_path / "model-1-of-2.safetensors", {"format": "pt"})
    save_file({"b": np.zeros(5)}, tmp_path / "model-2-of-2.safetensors")
    assert json.loads(said(file, "--safetensors", tmp_path, "--json"))["parameters"] == 17


@pytest.mark.parametrize(
    "data", [b"\xff" * 20, b"\x02" + bytes(7) + b"[]", b"\x13" + bytes(7) + b'{"a":{"shape":"x"}}']
)
def test_a_file_that_is_no_model_is_named(file: Path, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(SpecError, match="is no model"):
        said(file, "--safetensors", tmp_path)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "give --parameters, --model or --safetensors"),
        (("--parameters", "12B", "--safetensors", "."), "give --parameters, --model or"),
        (("--parameters", "12B", "--model", "a:b"), "give --parameters, --model or"),
        (("--parameters", "many"), "'many' is no number"),
        (("--parameters", "0"), "'0' is no number"),
        (("--parameters", "9" * 400), "is no number"),
        (("--parameters", "1B", "--step-time", "inf"), "--step-time: 'inf' is no number above 0"),
        (("--parameters", "1B", "--step-time", "0"), "--step-time: '0' is no number above 0"),
        (("--parameters", "1B", "--link", "eu"), "'eu' is no link"),
        (("--parameters", "1B", "--link", "eu=0,10"), "'eu=0,10' is no link"),
        (("--parameters", "1B", "--link", "eu=1", "--link", "eu=2"), "eu is given twice"),
        (("--parameters", "1B", "--egress", "eu=1,2"), "'eu=1,2' is no price"),
        (("--parameters", "1B", "--egress", "0.08"), "'0.08' is no price"),
        (("--parameters", "1B", "--tokens-per-step", "x"), "--tokens-per-step: 'x' is no number"),
        (
            ("--parameters", "1B", "--chips-per-learner", "8"),
            "--failures-per-chip-year: is missing",
        ),
        (
            ("--parameters", "1B", "--failures-per-chip-year", "1"),
            "--chips-per-learner: is missing",
        ),
        (("--parameters", "1B", *CHIPS, "--recovery-time", "-1"), "--recovery-time: '-1' is no"),
        (("--safetensors", "/proc"), "/proc has no values"),
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
