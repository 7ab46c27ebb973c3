"""A script whose learner in region `late` comes after the other one, and each step takes little.

It stands for a machine on which one learner still imports its libraries when the others are done.
LATE_AFTER names the event on the tapes of the job for which it waits; without it, it waits until
the other learner has joined, and then for longer than that one would need for the whole job.
"""

import os
import runpy
import time
from pathlib import Path

from local.command import TESTS

LATE_SECONDS = 5.0
LOOK_SECONDS = 0.1


def wait(folder: Path) -> None:
    """Return when this learner may come; `folder` is that of the run."""
    event = os.environ.get("LATE_AFTER")
    pattern = "syncer/*.jsonl" if event else "learners/quick-0.jsonl"
    looked_for = f'"event": "{event or "start"}"'
    while not any(looked_for in path.read_text() for path in folder.glob(pattern)):
        time.sleep(LOOK_SECONDS)
    if not event:
        time.sleep(LATE_SECONDS)


if __name__ == "__main__":
    if os.environ["ATOLL_REGION"] == "late":
        wait(Path(os.environ["ATOLL_TELEMETRY_DIR"]))
    folder = Path(TESTS).parent / "examples"
    runpy.run_path(str(folder / "train.py"), run_name="__main__")
