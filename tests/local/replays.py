"""What a run has recorded is computed again, by the command that a person uses."""

import json
from pathlib import Path

from local.command import ATOLL, commits, ended


def check_replay(out: Path) -> None:
    """Every commit has equal bits, also of processes that were killed; one changed byte is named.

    The run has taken no version back from a learner.
    """
    done = ended(ATOLL, "replay", out)
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(commits(out))  # a version may be recorded whose entry was never durable
    last = done.stdout.splitlines()[-1]
    assert int(last.split()[0]) >= count, (last, count)
    record = out / "checkpoints/record/1"
    merges = [json.loads(path.read_text()) for path in sorted((record / "log").iterdir())]
    merge = next(each for each in merges if each["slice"] == 2 and len(each["offers"]) > 1)
    first = merge["offers"][0]
    path = record / first["object"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = ended(ATOLL, "replay", out)
    assert done.returncode == 1, done.stdout + done.stderr
    where, slot = f"shard 1 slice 2 version {merge['number']}", first["participant"]["slot"]
    assert f"{where}: the offer of {slot}: objects/" in done.stdout
    assert f"the first that differs is {where}" in done.stdout
