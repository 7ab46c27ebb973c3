"""Whatever is killed, cut off or away, all that was trained is in exactly one count (rule 13)."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.local.chaos import FaultKind
from atoll_operator.local.run_files import CHAOS_FILE, read_lines
from local import fault_effects
from local.background import running
from local.command import LIGHT, TINY, TWO_LEARNERS, commits, tapes
from local.law import check_law, check_status, conserve, learners_lines
from local.leftovers import check_none_is_left

ENDLESS = ("--set", "spec.steps=1000000", "--set", "spec.evaluator=")
SLOW = (  # so that the time in which a learner dials again is a small part of a period
    "--set",
    LIGHT[1].replace("step-milliseconds-min=30", "step-milliseconds-min=200"),
)
SPARE = 2  # planned for each that has to be made


def all_are_back(out: Path, count: int) -> bool:
    """Whether so many faults were made, and their targets do again what they are for.

    So do the shards that later faults have hit: the status of a run that is interrupted is whole
    where each shard can be asked. A fault that hits a process that is down already is not made.
    """
    lines = read_lines(out / CHAOS_FILE)
    if sum("not_made" not in line for line in lines) < count:
        return False
    made = [line for line in fault_effects.in_folder(out, lines) if "not_made" not in line]
    awaited = made[:count] + [
        line for line in made[count:] if str(line["target"]).startswith("shard-")
    ]
    return all(line["back_seconds"] is not None for line in awaited)


def conserved(tmp_path: Path, plan: str, count: int, *more: str) -> Path:
    """A run under a plan until so many faults were made, and every shard commits again."""
    out, file = tmp_path / "out", tmp_path / "plan.yaml"
    file.write_text(plan)
    with running(TINY, out, "--chaos-plan", str(file), *ENDLESS, *LIGHT, *more) as run:
        run.until(lambda: all_are_back(out, count), "the return of every target")
        before = [len(run.commits(shard)) for shard in range(2)]
        run.until(
            lambda: all(len(run.commits(n)) > before[n] + 8 for n in range(2)), "more commits"
        )
        run.until(lambda: all_are_back(out, count), "shards that can be asked")
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    check_law(out)
    check_status(out, nobody_died=False)
    check_none_is_left(out)
    summary = json.loads((out / "summary.json").read_text())["chaos"]
    assert summary["faults"] - summary["not_made"] >= count
    return out


def kills(count: int, seconds: float, *more: dict[str, Any]) -> str:
    """So many of learners and shards as they come, one every so many seconds, and more faults."""
    draw, names = random.Random(5), ("us-east-0", "eu-west-0", "shard-0", "shard-1")
    faults = [{"at": n * seconds, "kill": draw.choice(names)} for n in range(1, count + 1)]
    return json.dumps({"faults": [*faults, *more]})


OTHERS = (
    {"at": 0.5, "pause": "eu-west-0", "for": 2},
    {"at": 6, "cut": ["eu-west-0", "shard-1"], "for": 3},
)


def test_kills_a_pause_and_a_cut_in_half_a_minute_lose_nothing_that_is_not_counted(
    tmp_path: Path,
) -> None:
    out = conserved(tmp_path, kills(SPARE * 6, 5.0, *OTHERS), 8, *TWO_LEARNERS)
    assert any(tokens.lost for tokens in conserve(learners_lines(out), tapes(out)).values())
    made = {line["fault"] for line in read_lines(out / CHAOS_FILE) if "not_made" not in line}
    assert made == {*FaultKind}


PARTITION = """
faults:
  - {at: 5, cut: [eu-west-0, shard-0], for: 60}
  - {at: 5, cut: [eu-west-0, shard-1], for: 60}
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_learner_behind_a_partition_of_a_minute_is_merged_again_within_two_periods(
    tmp_path: Path,
) -> None:
    out = conserved(tmp_path, PARTITION, 2, *TWO_LEARNERS, *SLOW)
    ended = max(line["ended"] for line in read_lines(out / CHAOS_FILE))
    for shard in range(2):
        mine = [line for line in commits(out) if line["shard"] == shard]
        healed = max(line["tick"] for line in mine if line["time"] <= ended)
        again = [
            line["tick"]
            for line in mine
            if line["time"] > ended
            and any(part["slot"] == "eu-west-0" for part in line["participants"])
        ]
        assert again[0] <= healed + 2 * 16, (shard, healed, again[:3])
