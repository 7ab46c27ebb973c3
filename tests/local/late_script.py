"""A script whose learner in the region `late` takes long until it is there, and each step little.

It stands for a machine on which one learner still imports its libraries when the others are done.
"""

import os
import runpy
import time
from pathlib import Path

from local.command import TESTS

LATE_SECONDS = 12.0

if __name__ == "__main__":
    if os.environ["ATOLL_REGION"] == "late":
        time.sleep(LATE_SECONDS)
    folder = Path(TESTS).parent / "examples"
    runpy.run_path(str(folder / "train.py"), run_name="__main__")
