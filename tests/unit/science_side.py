"""A queue of runs in a process of its own, the third of which never ends."""

import os
import signal
import sys
from pathlib import Path

from bench.science import queue
from bench.science.setting import Setting

SETTINGS = tuple(Setting(seed=seed, steps=1) for seed in range(4))


def quick(setting: Setting) -> queue.Result:
    return {"loss": float(setting.seed)}


def never_ends(setting: Setting) -> queue.Result:
    if setting.seed == 2:
        Path(os.environ["BEGUN"]).write_text(str(os.getpid()))
        signal.pause()
    return quick(setting)


if __name__ == "__main__":
    from unit import science_side  # so that its workers find what they are to call

    queue.work(Path(sys.argv[1]), SETTINGS, science_side.never_ends, 1)
