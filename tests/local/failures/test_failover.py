"""Two processes for each shard: one is killed, stands still, is cut off, ends in order."""

import json
import os
import signal
from pathlib import Path

from atoll_operator.local.chaos import effects
from atoll_operator.local.folder.run_files import CHAOS_FILE, read_lines
from atoll_syncer.checkpoints.places import FolderPlace
from local.background import running
from local.command import LIGHT, TINY, commits
from local.law import check_law, exported_is_newest, learners_lines
from local.leftovers import lives

# A process that a learner cannot reach keeps its shard.
PLAN = """
faults:
  - {at: 500ms, kill: shard-0}
  - {at: 500ms, cut: [us-east-0, shard-1], for: 3s}
"""
FAULTS = 2
SLOTS = ("us-east-0", "eu-west-0", "ap-south-0")
CUT_PLAN = "faults:\n" + "\n".join(
    f"  - {{at: 1s, cut: [{slot}, shard-1], for: 30s}}" for slot in SLOTS
)
MORE_STEPS = 40
TERMS = {0: 3, 1: 2}  # the first of each shard, and one for each fault that ends one


def test_a_shard_goes_on_in_its_other_process_and_nothing_is_lost(tmp_path: Path) -> None:
    out, plan = tmp_path / "out", tmp_path / "plan.yaml"
    plan.write_text(PLAN)

    def back() -> bool:
        lines = effects.in_folder(out, read_lines(out / CHAOS_FILE))
        return len(lines) == FAULTS and all(x["back_seconds"] is not None for x in lines)

    def owner(shard: int) -> int:
        """The process that has the shard, while the other one waits."""
        rows = json.loads((out / "processes.json").read_text())
        rows = [x for x in rows if x.get("shard") == shard and x["pid"]]
        serving = [x["pid"] for x in rows if not x["standby"]]
        return serving[0] if len(rows) > len(serving) == 1 else 0

    def hit(shard: int, number: signal.Signals) -> int:
        """The owner, once another process has the shard."""
        found = run.until(lambda: owner(shard), f"who has shard {shard}")
        epochs = {line["epoch"] for line in run.commits(shard)}
        os.kill(found, number)
        run.until(lambda: {x["epoch"] for x in run.commits(shard)} > epochs, "the next term")
        return found

    arguments = ("--standby", "--chaos-plan", str(plan), "--set", "spec.evaluator=", *LIGHT)
    with running(TINY, out, *arguments, "--set", "spec.steps=1000000") as run:
        run.until(back, "the return of every target")
        stands = hit(1, signal.SIGSTOP)
        hit(0, signal.SIGTERM)
        os.kill(stands, signal.SIGCONT)
        run.until(lambda: not lives(stands), "the end of who has slept")
        end = max(line.get("tick", 0) for line in learners_lines(out)) + MORE_STEPS
        run.edit(f"spec.steps={end}")
        code, stderr = run.finish()
    assert code == 0, stderr
    assert "Traceback" not in stderr
    check_law(out)
    for shard, terms in TERMS.items():
        epochs = {x["epoch"] for x in commits(out) if x["shard"] == shard}
        assert epochs | {1} == {*range(1, terms + 1)}  # the first may have ended without a commit
        assert [*served(out, shard)] == [*range(1, terms + 1)]
    first, second = served(out, 1).values()
    assert first != second  # a process that stands still is not started again
    assert f"{first} ended (exit code 77) and is started again" in stderr
    assert exported_is_newest(out, f"file://{out}/commits", lambda url: FolderPlace(Path(url[7:])))


def test_a_shard_that_no_learner_reaches_goes_on_in_its_other_process_rule_46(
    tmp_path: Path,
) -> None:
    out, plan = tmp_path / "out", tmp_path / "plan.yaml"
    plan.write_text(CUT_PLAN)
    steps = ("--set", "spec.steps=1000000")
    arguments = ("--standby", "--chaos-plan", str(plan), "--set", "spec.evaluator=")
    with running(TINY, out, *arguments, *LIGHT, *steps) as run:
        run.until(lambda: len(read_lines(out / CHAOS_FILE)) == len(SLOTS), "the end of the cut")
        run.until(lambda: any(x["epoch"] > 1 for x in run.commits(1)), "a commit of another term")
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    check_law(out)
    ended = max(line["ended"] for line in read_lines(out / CHAOS_FILE))
    assert min(x["time"] for x in commits(out) if x["shard"] == 1 and x["epoch"] > 1) < ended
    first, second, *_ = served(out, 1).values()
    assert first != second
    assert f"{first} ended (exit code 75) and is started again: no learner was heard" in stderr


def served(out: Path, shard: int) -> dict[int, str]:
    """By epoch, which process of the shard had it."""
    found = {}
    for path in (out / "logs").glob(f"shard-{shard}*.log"):
        for line in path.read_text().splitlines():
            if '"event": "serving"' in line:
                found[json.loads(line)["epoch"]] = path.stem
    return dict(sorted(found.items()))
