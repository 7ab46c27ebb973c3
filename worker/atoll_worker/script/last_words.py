"""Why a learner leaves the job, and what the kubelet is told of it.

Kubernetes keeps the last words of a container that has ended, and the operator reads them. Of one
that an error has ended it takes the end of the log, which says more than we could.
"""

import contextlib
from pathlib import Path
from typing import Final

from atoll_protos.exits import FINISHED, TERMINATED, returned_early

TERMINATION_LOG: Final = Path("/dev/termination-log")  # a container's last words, in Kubernetes
ALL_DONE, LOOP_ENDED = IN_ORDER = ("finished", "loop ended")  # why a script leaves without error


def say(reason: str, tick: int, total_ticks: int | None) -> None:
    """Leave the last words of a process that leaves for this reason; outside of a pod nothing."""
    early = returned_early(tick, total_ticks)
    words = {ALL_DONE: FINISHED, TERMINATED: TERMINATED, LOOP_ENDED: early}
    if TERMINATION_LOG.exists():
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(words.get(reason, ""))
