"""`atoll plan`: the figures of docs/sizing.md for a manifest, and what will not hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.api.job.spec import Spec
from atoll_operator.sizing import RegionLink, needs
from atoll_protos.errors import SpecError


def spec_of(learners: int, steps: int = 3600, **more: Any) -> Spec:
    region = {"name": "eu", "learners": learners}
    return Spec.model_validate({"steps": steps, "regions": [region], **more})


def test_the_two_examples_of_the_documents_come_out() -> None:
    small = needs(spec_of(4), 10**9, 1.0, {})
    (region,) = small.regions
    assert region.up / 4 == pytest.approx(0.67e9, rel=0.01)
    assert small.learner_memory == pytest.approx(8.8e9, rel=0.01)
    assert small.learner_cores == pytest.approx(0.25)
    assert small.syncer_up == small.syncer_down == pytest.approx(2.7e9, rel=0.02)
    assert small.shard_cores == pytest.approx(1.4, rel=0.02)
    assert small.shards_least == 1
    assert small.shard_memory == pytest.approx(11.0e9, rel=0.01)
    assert small.shard_writes == pytest.approx(0.33e9, rel=0.02)
    assert small.hours == 1
    large = needs(spec_of(8), 12 * 10**9, 10.0, {})
    assert large.regions[0].up / 8 == pytest.approx(0.8e9)
    assert large.learner_memory == pytest.approx(106e9)
    assert large.syncer_up == pytest.approx(6.4e9)
    assert large.shards_least == 2
    assert large.shard_memory == pytest.approx(138e9, rel=0.01)
    assert large.shard_room == pytest.approx(240e9, rel=0.01)


def test_a_job_with_a_bucket_knows_its_requests_as_the_documents_count_them() -> None:
    storage = {"type": "ObjectStore", "url": "s3://bucket/x"}
    spec = spec_of(8, syncer={"shards": 8, "storage": storage})
    writes = needs(spec, 12 * 10**9, 10.0, {}).store_writes_per_day
    assert writes == pytest.approx(8 * 8640 * (8 + 1) + 8 * 43200)
    assert needs(spec_of(8), 12 * 10**9, 10.0, {}).store_writes_per_day is None


def test_int4_takes_about_a_quarter_of_bf16() -> None:
    wire = {"wire": {"up": "int4", "down": "int8"}}
    (exact,) = needs(spec_of(2), 10**9, 1.0, {}).regions
    (short,) = needs(spec_of(2, sync=wire), 10**9, 1.0, {}).regions
    assert 0.25 < short.up / exact.up < 0.3
    assert 0.5 < short.down / exact.down < 0.52


def test_a_link_that_is_too_narrow_is_named_with_a_period_that_holds() -> None:
    link = {"eu": RegionLink(bits_per_second=1e9, round_trip_seconds=0.01)}
    found = needs(spec_of(2), 10**9, 1.0, link)
    (advice,) = found.advice
    assert "eu: 133% of its link" in advice
    assert "spec.sync.period from 24 to 40" in advice
    wider = spec_of(2, sync={"period": 40, "fragments": 24, "overlap": 4})
    assert not needs(wider, 10**9, 1.0, link).advice


def test_a_way_that_the_overlap_does_not_hide_is_named_with_one_that_does() -> None:
    link = {"eu": RegionLink(bits_per_second=2e9, round_trip_seconds=2.0)}
    (advice,) = needs(spec_of(1), 10**9, 1.0, link).advice
    assert "the overlap hides 2 s" in advice
    assert "spec.sync.overlap from 2 to 5" in advice
    assert not needs(spec_of(1, sync={"overlap": 5}), 10**9, 1.0, link).advice


def test_a_long_and_wide_line_asks_for_more_connections() -> None:
    link = {"eu": RegionLink(bits_per_second=1e9, round_trip_seconds=0.06)}
    (region,) = needs(spec_of(1), 10**8, 1.0, link).regions
    assert region.lanes == 3


def test_a_link_of_a_region_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecError, match="no region asia; give one of eu"):
        needs(
            spec_of(1), 10**9, 1.0, {"asia": RegionLink(bits_per_second=1e9, round_trip_seconds=0)}
        )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    spec = {"steps": 3600, "regions": [{"name": "eu", "learners": 4}]}
    kind = {"apiVersion": "atoll.dev/v1alpha1", "kind": "DecoupledTrainingJob"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**kind, "metadata": {"name": "big"}, "spec": spec}))
    return path


def said(*words: str | Path) -> str:
    done = CliRunner().invoke(cli.app, ["plan", "--step-time", "1", *map(str, words)])
    if done.exception:
        raise done.exception
    return done.stdout


def test_the_table_has_the_links_the_machines_and_the_advice(file: Path) -> None:
    text = said(file, "--parameters", "12B", "--link", "eu=20,80")
    assert text.startswith("big: 12,000,000,000 parameters, steps of 1 s, 1 h")
    assert "each learner, beside its training" in text
    assert "10 shards are needed" in text
    assert "eu: 160% of its link" in text
    found = json.loads(said(file, "--parameters", "1.5B", "--json"))
    assert found["parameters"] == 1_500_000_000
    assert found["regions"][0]["link_share"] is None


def test_the_size_can_come_from_the_models_files(file: Path, tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 4))}, tmp_path / "model-1-of-2.safetensors", {"format": "pt"})
    save_file({"b": np.zeros(5)}, tmp_path / "model-2-of-2.safetensors")
    assert json.loads(said(file, "--safetensors", tmp_path, "--json"))["parameters"] == 17


def test_an_overlap_that_the_period_does_not_allow_is_not_proposed_alone() -> None:
    link = {"eu": RegionLink(bits_per_second=2e9, round_trip_seconds=20.0)}
    (advice,) = needs(spec_of(1), 10**9, 1.0, link).advice
    assert "spec.sync.overlap from 2 to 32 and spec.sync.period from 24 to more" in advice


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
        ((), "give --parameters or --safetensors"),
        (("--parameters", "12B", "--safetensors", "."), "give --parameters or --safetensors"),
        (("--parameters", "many"), "'many' is no number"),
        (("--parameters", "0"), "'0' is no number"),
        (("--parameters", "9" * 400), "is no number"),
        (("--parameters", "1B", "--step-time", "inf"), "inf is no time"),
        (("--parameters", "1B", "--link", "eu"), "'eu' is no link"),
        (("--parameters", "1B", "--link", "eu=0,10"), "'eu=0,10' is no link"),
        (("--safetensors", "/proc"), "/proc has no values"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(
    words: tuple[str, ...], problem: str, file: Path
) -> None:
    with pytest.raises(SpecError, match=problem):
        said(file, *words)
