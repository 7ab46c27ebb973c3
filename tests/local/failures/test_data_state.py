"""A stream of data goes on at the very batch, whatever is killed: its state is kept (rule 28)."""

import itertools
from operator import itemgetter
from pathlib import Path

import pytest

from atoll_operator.local.folder.run_files import read_lines
from local.background import running
from local.command import manifest
from local.failures import stateful_script
from local.failures.stateful_script import GATE_TICKS, loader_of

STEPS = 90


def unbroken(slot: str, count: int) -> list[list[int]]:
    """The first batches of a slot without any kill."""
    return [batch.tolist() for batch in itertools.islice(loader_of(slot), count)]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_the_batches_are_those_of_an_unbroken_run_whatever_is_killed(tmp_path: Path) -> None:
    job, out, batches = tmp_path / "job.yaml", tmp_path / "out", tmp_path / "batches"
    batches.mkdir()
    (batches / "gate-0").touch()
    text = manifest(  # learners that wait for each other: none trains on while one is away
        Path(stateful_script.__file__),
        regions=["one", "two"],
        start_seconds=1800,
        env={"BATCHES": str(batches)},
        steps=STEPS,
        sync={"fragments": 2, "period": 6, "quorum": 2},
    )
    job.write_text(text)

    def merged(slot: str, incarnation: int | None = None) -> int:
        """The largest cursor in any commit so far; of one start of the slot, or of all."""
        parts = (part for n in (0, 1) for each in run.commits(n) for part in each["participants"])
        mine = (part for part in parts if part["slot"] == slot)
        wanted = (part for part in mine if incarnation in (None, part["incarnation"]))
        return max((part["cursor"] for part in wanted), default=0)

    with running(job, out) as run:
        run.until(lambda: merged("one-0") >= 10, "commits")
        (batches / "gate-1").touch()
        run.kill("one-0")  # its state comes from shards that have it in memory
        before = merged("one-0")
        run.until(lambda: merged("one-0") > before + 8, "commits of the second process")
        run.kill(0, 1, "one-0", "two-0")  # nobody has it in memory any more
        for number in range(2, 1 + STEPS // GATE_TICKS):
            (batches / f"gate-{number}").touch()
        code, stderr = run.finish()
    assert code == 0, stderr

    for slot, processes in (("one-0", 3), ("two-0", 2)):
        lines = read_lines(batches / f"{slot}.jsonl")
        expected = unbroken(slot, 1 + max(line["cursor"] for line in lines))
        assert all(line["batch"] == expected[line["cursor"]] for line in lines)
        starts = [list(group) for _, group in itertools.groupby(lines, itemgetter("pid"))]
        assert [start[0]["kept"] for start in starts] == [False] + [True] * (processes - 1)
        for start in starts:
            cursors = [line["cursor"] for line in start]
            assert cursors == list(range(cursors[0], cursors[0] + len(cursors)))
        for number, (earlier, later) in enumerate(itertools.pairwise(starts), start=1):
            assert 0 < merged(slot, number) <= later[0]["cursor"] <= earlier[-1]["cursor"] + 1
