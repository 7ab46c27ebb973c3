"""What holds of every run, whatever was killed in it: tokens are conserved, versions follow."""

from pathlib import Path
from typing import Any

from atoll_operator.local.summary import conserve, merged_by_tape
from local.command import commits, json_lines, tapes


def learners_lines(out: Path) -> list[dict[str, Any]]:
    """What all learners of a run have reported."""
    return [line for path in (out / "learners").glob("*.jsonl") for line in json_lines(path)]


def check_law(out: Path) -> None:
    """Rule 13 from the files; and versions of a slice follow one another (rule 19)."""
    law = conserve(learners_lines(out), tapes(out))
    assert all(tokens.balanced for tokens in law.values()), law
    assert {key: tokens.merged for key, tokens in law.items()} == {
        **dict.fromkeys(law, 0),
        **merged_by_tape(tapes(out)),
    }
    by_slice: dict[tuple[int, int], list[int]] = {}
    for line in commits(out):
        by_slice.setdefault((line["shard"], line["slice"]), []).append(line["version"])
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_slice.values())
