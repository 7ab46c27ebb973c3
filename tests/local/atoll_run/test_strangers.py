"""Other users of the machine get nothing of a run: real processes, and a process of `nobody`."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_operator.local.run_folder import endpoints_of
from atoll_protos.job.run_file import RunFile
from local.atoll_run import stranger_script
from local.background import running
from local.command import ATOLL, LIGHT, TINY, TWO_LEARNERS, ended

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
EVALUATED = ("--set", "spec.evaluator={everySteps: 1}")
ENDLESS = ("--set", "spec.steps=100000", "--set", "spec.checkpoint={everySteps: 8}")


@pytest.fixture
def out() -> Iterator[Path]:
    """A folder that a person has made for all to see; pytest's own are private already."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        folder = Path(above, "out")
        folder.mkdir(mode=0o755)
        (folder / "notes.txt").touch(0o644)
        yield folder


def open_to_others(folder: Path) -> set[str]:
    return {str(x.relative_to(folder)) for x in folder.rglob("*") if x.lstat().st_mode & 0o077}


@AS_ROOT
def test_another_user_reads_nothing_of_a_run_and_reaches_no_shard(out: Path) -> None:
    with running(TINY, out, *ENDLESS, *TWO_LEARNERS, *LIGHT, *EVALUATED) as run:
        run.until(lambda: run.commits(0) and (out / "evaluations.jsonl").exists(), "its work")
        endpoint = endpoints_of(out)[0]
        run_hash = RunFile.from_json((out / "run.json").read_text()).hash
        words = (stranger_script.__file__, out, endpoint, run_hash, "us-east-0")
        done = subprocess.run(
            [sys.executable, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True
        )
        assert json.loads(done.stdout) == {
            "calls": dict.fromkeys(("Export", "Join", "Status", "SetOwner"), "UNAVAILABLE"),
            "readable": ["notes.txt"],
        }
        assert ended(ATOLL, "export", out, "--out", out.parent / "model").returncode == 0
        run.finish(signal.SIGINT)
    assert open_to_others(out) == {"notes.txt"}
    assert (out.stat().st_mode & 0o777, [*out.glob("sockets-*")]) == (0o755, [])
    asked_for = out.parent / "model"  # by a person, so it is as the umask says
    assert open_to_others(asked_for) == {
        str(x.relative_to(asked_for)) for x in asked_for.rglob("*")
    }
