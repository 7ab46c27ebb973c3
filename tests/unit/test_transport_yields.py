"""The transport process gives way to the training thread that it serves."""

import os
import subprocess
import sys

PROGRAM = """
import os
from atoll_worker.transport import yield_to_training
yield_to_training()
print(os.sched_getscheduler(0))
"""


def test_a_woken_transport_does_not_preempt_the_thread_that_woke_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == os.SCHED_BATCH
