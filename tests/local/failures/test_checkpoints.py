"""A run is taken up from a checkpoint by a job of another form."""

import json
from pathlib import Path
from statistics import mean

from atoll_operator.local.run_files import read_lines
from atoll_syncer.checkpoints import restoring
from atoll_syncer.storage.object_store import open_store
from local.command import LIGHT, TINY, TWO_LEARNERS, run_atoll, tapes

EVERY = 20
LIGHT_OF_MANY = (*LIGHT, "--set", "spec.evaluator=")


def losses(out: Path) -> list[float]:
    """The losses of all learners, in their order."""
    files = sorted((out / "learners").glob("*.jsonl"))
    lines = [line for file in files for line in read_lines(file)]
    lines = [line for line in lines if line.get("loss") is not None and "t_m" in line]
    return [line["loss"] for line in sorted(lines, key=lambda line: float(line["time"]))]


def cursor_of(out: Path, slot: str) -> int:
    """The place in its data at which a learner began."""
    lines = read_lines(out / "learners" / f"{slot}.jsonl")
    return int(next(line["cursor"] for line in lines if line.get("event") == "start"))


def begins(out: Path) -> list[tuple[str, int]]:
    """By shard, the checkpoint and the tick with which its run begins."""
    return [(x["checkpoint"], x["tick"]) for x in tapes(out) if x.get("event") == "run"]


def test_a_job_of_another_form_trains_on_from_a_checkpoint(tmp_path: Path) -> None:
    out, parent = tmp_path / "out", tmp_path / "parent"
    place = parent / "checkpoints"
    more = ("--set", f"spec.checkpoint={{everySteps: {EVERY}, keep: 2}}", "--set", "spec.steps=110")
    run_atoll(TINY, parent, *TWO_LEARNERS, *LIGHT, *more)
    steps = sorted(int(each.name.removeprefix("step-")) for each in place.glob("step-*"))
    whole = [step for step in steps if (place / f"step-{step}/checkpoint.json").exists()]
    assert whole[-1] % EVERY == 0
    about = json.loads((place / f"step-{whole[-1]}/checkpoint.json").read_text())
    assert about["tick"] >= whole[-1]
    regions = "spec.regions=[{name: us-east, learners: 2}, {name: ap-south}]"
    run_atoll(
        TINY,
        out,
        *LIGHT_OF_MANY,
        *("--set", regions, "--set", "spec.steps=160", "--set", "spec.syncer.shards=3"),
        *("--set", "spec.sync.fragments=5", "--set", "spec.sync.wire={up: int8, down: int8}"),
        *("--set", "spec.sync.outer={learningRate: '0.6', momentum: '0.8'}"),
        *("--set", "spec.seed=7", "--resume-from", str(parent)),
    )
    assert begins(out) == [(f"file://{place}/step-{whole[-1]}", about["tick"])] * 3
    known = restoring.find(f"file://{place}", open_store).cursors
    for slot in ("us-east-0", "us-east-1", "ap-south-0"):
        assert cursor_of(out, slot) == known.get(slot, 0)
    assert known.keys() <= {"us-east-0", "eu-west-0"}
    before, after = losses(parent), losses(out)
    first, last = mean(before[:20]), mean(before[-40:])
    assert mean(after[:30]) < (first + last) / 2
    assert mean(after[-60:]) < last + 0.2  # batches of 64 tokens differ by more than a half
    assert json.loads((out / "summary.json").read_text())["result"] == "Complete"
