"""What a run has recorded is computed again, by the command that a person uses."""

import json
from pathlib import Path
from typing import Any

from local.command import ATOLL, commits, ended
from unit.syncer.record_side import rewrite


def check_replay(out: Path) -> None:
    """Every commit has equal bits, also of processes that were killed.

    One changed byte of an offer is named, and one changed counter. The run has taken no version
    back from a learner.
    """
    done = ended(ATOLL, "replay", out)
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(commits(out))  # a version may be recorded whose entry was never durable
    last = done.stdout.splitlines()[-1]
    assert int(last.split()[0]) >= count, (last, count)
    record = out / "checkpoints/record/1"
    _, merge = a_merge(record, 2)
    first = merge["offers"][0]
    path = record / first["object"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    other, counted = a_merge(record, 3)
    counted["offers"][0]["participant"]["tokens"] += 1
    rewrite(other, lambda document: document | {"offers": counted["offers"]})
    done = ended(ATOLL, "replay", out)
    assert done.returncode == 1, done.stdout + done.stderr
    slot = first["participant"]["slot"]
    assert f"shard 1 slice 2 version {merge['number']}: the offer of {slot}: obj" in done.stdout
    assert f"shard 1 slice 3 version {counted['number']}: the offer of " in done.stdout
    assert "the first that differs is shard 1 slice " in done.stdout


def a_merge(record: Path, slice_: int) -> tuple[Path, dict[str, Any]]:
    """The file of a version of a slice that holds the offers of several learners."""
    found = [(path, json.loads(path.read_text())) for path in sorted((record / "log").iterdir())]
    return next(
        (path, each) for path, each in found if each["slice"] == slice_ and len(each["offers"]) > 1
    )
