"""A server whose folder has what a run leaves there, and the commands of a laptop."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll_operator import cli
from atoll_operator.cli.tokens import TokenWanted, made
from atoll_operator.local.folder import run_lock
from atoll_operator.local.folder.run_files import MANIFEST_FILE, STATUS_FILE
from unit.machines.served import JOB, Served

STATUS = '{"conditions": [{"type": "Progressing", "status": "True", "reason": "Training"}]}'


@contextmanager
def with_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server whose folder has what a run leaves there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Served(tmp_path / "served")
    (found.out / MANIFEST_FILE).write_text(JOB)
    (found.out / STATUS_FILE).write_text(STATUS)
    for name, text in (
        ("logs/shard-0.log", "first\nsecond\nthird\n"),
        ("learners/here-0.jsonl", '{"tick": 1, "loss": 2.0}\n'),
        ("syncer/0.tape.jsonl", '{"bytes_up": 0, "bytes_down": 0}\n'),
        ("evaluations.jsonl", '{"loss": 1.0}\n'),
        ("processes.json", "[]"),
    ):
        (found.out / name).parent.mkdir(exist_ok=True)
        (found.out / name).write_text(text)
    with run_lock.running(found.out), found.server.open(found.said.append):
        yield found


def line(served: Served, **wanted: bool) -> str:
    return made(served.out, TokenWanted(**wanted), time.time())  # type: ignore[arg-type]


def atoll(*words: str) -> str:
    """What the command writes; raises SpecError."""
    found = CliRunner().invoke(cli.app, words)
    if isinstance(found.exception, Exception) and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.02)
