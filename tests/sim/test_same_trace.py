"""A seed is a whole run: replaying it shows the same events in the same order."""

import os
import subprocess
import sys

import pytest

from sim.simulate import simulate

SEEDS = (3, 20, 26, 77)
PROGRAM = """
from sim.simulate import simulate
print(*(simulate(seed).digest for seed in map(int, "{seeds}".split())))
"""


def digests(hash_seed: str) -> list[str]:
    program = PROGRAM.format(seeds=" ".join(map(str, SEEDS)))
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    assert digests("1") == digests("2") == [simulate(seed).digest for seed in SEEDS]


@pytest.mark.parametrize("seed", SEEDS)
def test_watching_a_run_does_not_change_it(seed: int) -> None:
    trace: list[str] = []
    assert simulate(seed, trace=trace).digest == simulate(seed, ()).digest
    assert trace
