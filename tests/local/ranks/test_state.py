"""Every rank of a learner goes on in its own data, and knows where it cannot (rule 35)."""

from pathlib import Path

from local.command import json_lines
from local.one_shard import one_shard
from local.ranks.jobs import run_script


def test_each_rank_gets_its_own_state_of_the_very_cursor_and_another_number_of_ranks_none(
    tmp_path: Path,
) -> None:
    with one_shard(tmp_path, steps=100_000):
        said = run_script("state_script.py", tmp_path)
    head, other = (json_lines(tmp_path / f"{rank}.jsonl") for rank in range(2))
    cursors = [line["cursor"] for line in head]
    assert 0 == cursors[0] < cursors[1] < cursors[2]
    assert [line["cursor"] for line in other] == cursors[:2]
    assert [line["state"] for line in head] == [None, f"{cursors[1]} of 0", None]
    assert [line["state"] for line in other] == [None, f"{cursors[1]} of 1"]
    assert "the slot's data state was given by 2 ranks and this learner has 1" in said
