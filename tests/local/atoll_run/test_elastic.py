"""Learners come to a running job and go, also where all wait for each other; nobody restarts."""

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll_protos.environment import Env
from atoll_protos.job.run_file import Region, RunFile
from local.background import SECONDS_MAX, Running, running
from local.command import LIGHT, TINY

PERIOD = 4
PLAIN = (
    *("--set", f"spec.sync={{preset: DiLoCo, period: {PERIOD}}}", "--set", "spec.steps=100000"),
    *("--set", "spec.regions=[{name: us-east}, {name: eu-west}]", "--set", "spec.evaluator="),
)
NEWCOMER = "us-east-1"


@contextmanager
def newcomer(run: Running, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One more learner, with the run file that the operator would give it: one more in us-east."""
    pid = run.row("us-east-0")["pid"]
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")[:-1]
    environment = dict(pair.split("=", 1) for pair in pairs)
    own = {Env.SLOT: NEWCOMER, Env.UID: "newcomer", Env.INSTANCE: "newcomer-1"}
    file = RunFile.from_json((run.out / "run.json").read_text())
    grown = (Region(name="us-east", learners=2), *file.regions[1:])
    path = folder / "grown.json"
    path.write_text(dataclasses.replace(file, regions=grown).to_json())
    with (folder / "newcomer.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment, **own, Env.RUN_FILE: str(path)},
            stdout=log,
            stderr=log,
        )
    with process:
        try:
            yield process
            process.terminate()
            process.wait(SECONDS_MAX)
        finally:
            process.kill()


def test_a_third_learner_joins_two_that_wait_for_each_other_and_leaves_again(
    tmp_path: Path,
) -> None:
    def merged_last() -> set[str]:
        commits = run.commits(0)
        return {each["slot"] for each in commits[-1]["participants"]} if commits else set()

    out, both = tmp_path / "out", {"us-east-0", "eu-west-0"}
    with running(TINY, out, *LIGHT, *PLAIN) as run:
        run.until(lambda: merged_last() == both, "merges of two")
        before = {slot: run.row(slot) for slot in both} | {
            shard: run.row(shard) for shard in (0, 1)
        }
        with newcomer(run, tmp_path) as process:
            run.until(lambda: merged_last() == both | {NEWCOMER}, "merges of three")
            three = len(run.commits(0))
            run.until(lambda: len(run.commits(0)) > three + 2, "more merges")
            for commit in run.commits(0)[three:]:
                assert {each["slot"] for each in commit["participants"]} == both | {NEWCOMER}
            process.send_signal(signal.SIGTERM)
            run.until(lambda: merged_last() == both, "merges of two again")
        assert {name: run.row(name) for name in before} == before
        run.finish(signal.SIGINT)
