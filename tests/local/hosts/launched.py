"""A learner of ddp_loop.py that a launcher has started: its processes, and what it has trained."""

from pathlib import Path

from atoll_operator.local.run_files import read_lines
from local.background import Running
from local.command import TESTS

DDP = TESTS.parent / "examples" / "libraries" / "ddp_loop.py"
FOR_EVER = ("--steps", "1000000")
BATCH = 16  # of a rank of ddp_loop.py


def ranks_of(launcher: int) -> dict[int, int]:
    """The processes that a launcher has started, by rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    found = dict[int, int]()
    for pid in map(int, children):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks = [each for each in environment if each.startswith(b"RANK=")]
        found.update({int(rank.removeprefix(b"RANK=")): pid for rank in ranks})
    return found


def incarnations(run: Running, slot: str) -> set[int]:
    """Those in which the learner has made steps."""
    lines = read_lines(run.out / "learners" / f"{slot}.jsonl")
    return {line["incarnation"] for line in lines if line.get("t_m")}
