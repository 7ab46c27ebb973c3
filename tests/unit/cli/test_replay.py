"""`atoll run --record` and `atoll replay`, up to the programs of the syncer."""

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_protos.errors import SpecError

TINY = Path(__file__).resolve().parents[3] / "examples/tiny.yaml"


def test_a_folder_without_a_record_is_refused_with_the_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        done = CliRunner().invoke(cli.app, ["replay", str(folder)])
        assert done.exit_code == 64
        assert "holds no record; give the folder of a run" in capfd.readouterr().err


def test_without_the_syncers_packages_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = CliRunner().invoke(cli.app, ["replay", "here"])
    assert isinstance(done.exception, SpecError)
    assert "pip install -e '.[syncer]'" in str(done.exception)
