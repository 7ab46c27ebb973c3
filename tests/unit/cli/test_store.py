"""`atoll store check`: a program of the syncer in a process of its own."""

import importlib.util
import subprocess
from typing import Any

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_protos.errors import SpecError


def test_the_check_has_the_url_and_the_endpoint_and_its_code_is_the_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = list[list[str]]()

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(words[4:])
        return subprocess.CompletedProcess(words, 75)

    monkeypatch.setattr(subprocess, "run", run)
    for more in ([], ["--endpoint", "http://here:9000"]):
        done = CliRunner().invoke(cli.app, ["store", "check", "s3://bucket/x", *more])
        assert done.exit_code == 75
    assert started == [
        ["s3://bucket/x"],
        ["s3://bucket/x", "--endpoint", "http://here:9000"],
    ]


def test_what_is_no_bucket_is_refused_with_the_remedy(capfd: pytest.CaptureFixture[str]) -> None:
    done = CliRunner().invoke(cli.app, ["store", "check", "/a/folder"])
    assert done.exit_code == 64
    assert capfd.readouterr().err.startswith("/a/folder: is no bucket; give s3://")


@pytest.mark.parametrize("words", [["store", "check", "s3://bucket/x"], ["replay", "here"]])
def test_without_the_syncers_packages_it_says_what_to_install(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = CliRunner().invoke(cli.app, words)
    assert isinstance(done.exception, SpecError)
    assert "pip install -e '.[syncer]'" in str(done.exception)
