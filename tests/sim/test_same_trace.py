"""A seed is a whole run: replaying it shows the same events in the same order."""

import os
import subprocess
import sys

from sim.simulate import simulate

SEEDS = (3, 20, 26, 77)
PROGRAM = f"""
from sim.simulate import simulate
print(*(simulate(seed).digest for seed in {SEEDS}))
"""
HASH_SEED = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # not that of this process


def test_a_seed_gives_the_same_trace_in_every_process_and_also_where_it_is_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "PYTHONHASHSEED": HASH_SEED,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    for seed, elsewhere in zip(SEEDS, done.stdout.split(), strict=True):
        trace: list[str] = []
        assert simulate(seed, ()).digest == simulate(seed, trace=trace).digest == elsewhere
        assert trace
