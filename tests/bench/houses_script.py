"""A learner of bench.houses: the built-in example, which notes what `learner.step` spends time on.

A line of clocks.jsonl in the learner's folder for each step, in seconds: `core` on a core, `ready`
while no core was free, `asleep` the rest: all that it can have waited for others, also the network.
"""

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from atoll_protos.environment import Env
from atoll_worker.learner import Learner
from bytegpt.train import main

NAME: Final = "clocks.jsonl"


def clocks() -> tuple[float, float, float]:
    """Of this thread: wall time, on a core, and ready to run. In seconds.

    schedstat has the time on a core as well, but only up to the last tick of the scheduler.
    """
    _, ready, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.monotonic(), time.thread_time(), int(ready) / 1e9


def note_steps(file: Path) -> None:
    step, lines = Learner.step, file.open("a", buffering=1)

    def noted(learner: Learner, **given: Any) -> Any:
        before = clocks()
        found = step(learner, **given)
        wall, core, ready = (b - a for a, b in zip(before, clocks(), strict=True))
        line = {"core": core, "ready": ready, "asleep": max(0.0, wall - core - ready)}
        lines.write(json.dumps(line) + "\n")
        return found

    Learner.step = noted  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    note_steps(Path(os.environ[Env.TELEMETRY_DIR]) / NAME)
    main()
