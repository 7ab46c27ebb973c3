"""Each word of a plan of faults in a real run, and what it leaves in chaos.jsonl."""

import json
import signal
from pathlib import Path
from typing import Any

from atoll_operator.local.chaos import effects
from atoll_operator.local.chaos.plan import FaultWord
from atoll_operator.local.folder.run_files import CHAOS_FILE, read_lines
from atoll_operator.local.show.run_summary import conserve
from local import command
from local.background import running
from local.command import TINY, commits, tapes
from local.law import balanced, learners_lines

# Learner us-east-0 is spared, so that all values are somewhere whatever the shards lose.
PLAN = """
faults:
  - {at: 500ms, pause: eu-west-0, for: 2s}
  - {at: 500ms, fillDisk: shard-0, for: 3s}
  - {at: 4s, slowCpu: eu-west-0, to: 50%, for: 1s}
  - {at: 3s, loseStore: shard-1, for: 3s}
  - {at: 6s, cut: [eu-west-0, shard-1], for: 3s}
  - {at: 10s, delay: 50ms, of: [eu-west-0, any], for: 1s}
  - {at: 10s, rate: 500kB/s, of: [eu-west-0, shard-1], for: 1s}
  - {at: 12s, corrupt: 1 of 20, of: [eu-west-0, shard-1], for: 1s}
  - {at: 14s, kill: eu-west-0}
  - {at: 14s, flipByte: shard-1}
  - {at: 15s, truncate: shard-1}
  - {at: 16s, emptyStore: shard-1}
"""
LIGHT = (*command.TWO_LEARNERS, *command.LIGHT, "--set", "spec.sync.fragments=4")


def test_every_word_of_a_plan_hits_and_its_target_comes_back(tmp_path: Path) -> None:
    out, plan = tmp_path / "out", tmp_path / "plan.yaml"
    plan.write_text(PLAN)

    def found() -> list[dict[str, Any]]:
        return effects.in_folder(out, read_lines(out / CHAOS_FILE))

    def back() -> bool:
        lines = found()
        done = [line["back_seconds"] is not None for line in lines]
        return len(done) == len(FaultWord) and all(done)

    # It does not end by itself: all may take long to be back.
    endless = ("--set", "spec.steps=100000", "--chaos-plan", str(plan))
    with running(TINY, out, *endless, *LIGHT) as run:
        run.until(back, "the return of every target")
        rows = {each: run.row(each)["restarts"] for each in ("eu-west-0", "us-east-0", 0, 1)}
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert rows["eu-west-0"] >= 1
    assert rows[1] >= 1
    assert (rows["us-east-0"], rows[0]) == (0, 0)
    lines = {line["fault"]: line for line in read_lines(out / CHAOS_FILE)}
    assert lines.keys() == {*FaultWord}
    assert all(line["back_seconds"] > 0 and "not_made" not in line for line in lines.values())
    assert {line["run"] for line in lines.values()} == {line["run"] for line in commits(out)}
    check_effects(out, lines)
    summary = json.loads((out / "summary.json").read_text())["chaos"]
    assert (summary["faults"], summary["not_made"], summary["not_back"]) == (len(FaultWord), 0, 0)
    assert summary["back_seconds_max"] == max(line["back_seconds"] for line in lines.values())
    law = conserve(learners_lines(out), tapes(out))
    assert all(map(balanced, law.values())), law


def check_effects(out: Path, lines: dict[str, Any]) -> None:
    """What a fault takes away is not there in its last half second, or as long as it lasts.

    It is taken back after its seconds, and what comes back may be there before `ended` is noted.
    """

    def last(word: str) -> tuple[float, float]:
        end = lines[word]["began"] + lines[word]["seconds"]
        return end - 0.5, end

    def meanwhile(word: str, shard: int) -> list[dict[str, Any]]:
        start, end = last(word)
        return [x for x in commits(out) if x["shard"] == shard and start < x["time"] < end]

    assert meanwhile("fillDisk", 0) == []
    assert "no file may be so large" in (out / "logs/shard-0.log").read_text()
    assert meanwhile("loseStore", 1) == []
    assert "No such file or directory" in (out / "logs/shard-1.log").read_text()
    parts = [part["slot"] for line in meanwhile("cut", 1) for part in line["participants"]]
    assert "eu-west-0" not in parts
    times = [x["time"] for x in learners_lines(out) if x["slot"] == "eu-west-0" and "tick" in x]
    start, end = last("pause")
    assert not [each for each in times if start < each < end]
    assert times[-1] > end
    tape = read_lines(out / "syncer/1.tape.jsonl")
    lost = [line["time"] for line in tape if line["event"] == "loss"]
    assert lost[-1] > lines["emptyStore"]["began"]
    assert lines["emptyStore"]["gap_seconds_after"] is not None
