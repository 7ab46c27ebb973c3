"""A shard of a real run loses its store, or one object of it, and the run continues (rule 22)."""

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from atoll_operator.local.show.run_summary import conserve
from local import command
from local.background import Running, running
from local.command import TINY, commits, tapes
from local.law import balanced, learners_lines

FRAGMENTS = 4
TWO_LEARNERS = (*command.TWO_LEARNERS, *command.LIGHT, "--set", f"spec.sync.fragments={FRAGMENTS}")


def lose_all(store: Path) -> None:
    """As with Ephemeral storage."""
    shutil.rmtree(store)


def lose_the_newest_object(store: Path) -> None:
    """As on a bad disk: the log names it, and it is gone."""
    objects = store.glob("objects/*")
    max(objects, key=lambda path: path.stat().st_mtime_ns).unlink()


def after_recovery(run: Running, count: int) -> set[int]:
    """The slices of which shard 1 has made versions since so many have come back."""
    lines = run.commits(1)
    back = [number for number, line in enumerate(lines) if line.get("recovered")]
    return {line["slice"] for line in lines[back[-1] + 1 :]} if len(back) == count else set()


@pytest.mark.parametrize(
    "lose", [lose_all, pytest.param(lose_the_newest_object, marks=pytest.mark.long)]
)
def test_what_a_shard_lost_comes_back_from_the_learners(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    out = tmp_path / "out"
    # It does not end by itself: there is time to look and to kill, however long that takes.
    with running(TINY, out, "--set", "spec.steps=100000", *TWO_LEARNERS) as run:
        every = set(range(FRAGMENTS))
        run.until(lambda: {line["slice"] for line in run.commits(1)} == every, "commits of all")
        run.kill(1, then=partial(lose, out / "commits" / "1"))  # it starts again without it
        count = FRAGMENTS if lose is lose_all else 1
        run.until(lambda: len(after_recovery(run, count)) == FRAGMENTS, "commits of all after it")
        code, stderr = run.finish(signal.SIGINT)
    assert code == 130, stderr
    recovered = [line for line in commits(out) if line.get("recovered")]
    assert {line["shard"] for line in recovered} == {1}
    assert all(line["reason"].startswith("StoreRecovered: version ") for line in recovered)
    assert len(recovered) == count
    numbers: dict[tuple[int, int], list[int]] = {}
    for line in commits(out):
        numbers.setdefault((line["shard"], line["slice"]), []).append(line["version"])
    after = [line for line in commits(out) if line["shard"] == 1 and not line.get("recovered")]
    assert after[-1]["epoch"] >= recovered[-1]["epoch"] > 1
    for line in recovered:
        later = numbers[1, line["slice"]]
        assert max(later) >= line["version"] > line["base"]
    lines = learners_lines(out)
    law = conserve(lines, tapes(out))
    assert all(map(balanced, law.values())), law
    assert not [line for line in lines if line.get("event") == "not held"]
