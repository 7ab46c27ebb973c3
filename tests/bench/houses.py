"""`atoll serve` and `atoll join` from houses behind NAT: share of time blocked.

In tests/: python -m bench.houses [--megabits N ...] [--milliseconds N] [--steps N]
                                  [--step-seconds S] [--runs N]   (needs root)

A job with a house for each rate, of a byte model of 4 million parameters with int4 up. The link of
a house has so many Mbit/s up (tbf), and 0 is no limit; a round trip to it takes 60 ms.

Blocked is the time inside `learner.step`, as a share of that of a step on a quiet machine. Where
learners share cores, it has the time that they wait for one.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Final

from bench import jobs
from bench.results import Figure, option, publish
from local.command import TESTS, python_path
from local.machines.commands import Machine, commands_in
from local.machines.nat import V4, V6, behind_nat

TRAIN: Final = ["--layers=5", "--heads=4", "--width=256", "--context=32", "--batch=1"]
SYNC: Final = {**jobs.TINY, "wire": {"up": "int4"}}
ABOUT: Final = "Houses behind NAT, 4 million parameters, int4 up. Medians of the runs."


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of a house: its Mbit/s up, mean seconds of a step, and the share blocked."""

    megabits: float
    step_seconds: float
    blocked: float

    @property
    def name(self) -> str:
        return f"{self.megabits:g} Mbit/s" if self.megabits else "no limit"


def played(given: argparse.Namespace, folder: Path) -> list[Found]:
    """Run a job to its end."""
    pace = f"--step-milliseconds-min={1000 * given.step_seconds:.0f}"
    regions = [f"region-{number}" for number, _ in enumerate(given.megabits)]
    path = f"PYTHONPATH={python_path(TESTS)}"
    script = (
        "--",
        "env",
        path,
        sys.executable,
        "-m",
        "atoll_worker",
        "bytegpt.train:main",
        *TRAIN,
        pace,
    )
    job, none = folder / "job.yaml", dict.fromkeys(regions, ())
    job.write_text(jobs.manifest(none, steps=given.steps, sync=SYNC, seed=given.seed))
    families = zip(itertools.cycle((V4, V6)), given.megabits, strict=False)
    with (
        behind_nat(folder, *families, milliseconds=given.milliseconds) as place,
        commands_in(folder) as here,
    ):
        out = folder / "served"
        words = ("serve", job, "--out", out, "--listen", "0.0.0.0:7700", "--output", "lines")
        server = here.atoll(out, *words, within=place.server.enter)
        line = server.says("ATOLL_TOKEN=")
        houses = [
            here.join(line, region, "--region", region, *script, within=house.enter)
            for region, house in zip(regions, place.houses, strict=True)
        ]
        if any(machine.end() for machine in (*houses, server)):
            raise RuntimeError(server.logs())
    pairs = zip(houses, given.megabits, strict=True)
    return [found(house, rate, given.step_seconds) for house, rate in pairs]


def found(house: Machine, megabits: float, pace: float) -> Found:
    """Read what the learner of a house has written; `pace`: seconds of a step by itself."""
    (path,) = (house.out / "learners").glob("*.jsonl")
    # The first step has begun with Start.
    steps = [line for line in jobs.lines(path) if line.get("step_seconds", 0.0) > 0][1:]
    return Found(
        megabits=megabits,
        step_seconds=mean(line["step_seconds"] for line in steps),
        blocked=mean(line["blocked_seconds"] for line in steps) / pace,
    )


def figures(runs: Sequence[list[Found]]) -> Iterator[Figure]:
    """Medians over the runs."""
    for of_house in zip(*runs, strict=True):
        house = of_house[0].name
        share = median(100 * run.blocked for run in of_house)
        yield Figure(what=f"{house}: blocked", values=[share], unit="%")
        seconds = median(run.step_seconds for run in of_house)
        yield Figure(what=f"{house}: a step", values=[seconds], unit="s")


def main() -> None:
    """Measure several runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabits", type=float, nargs="+", default=[4.0, 20.0, 100.0, 0.0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--step-seconds", type=float, default=0.5)
    parser.add_argument("--milliseconds", type=float, default=60.0, help="of a round trip")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    option(parser)
    given = parser.parse_args()
    runs = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(played(given, Path(folder)))
    publish(given, [*figures(runs)], about=ABOUT)


if __name__ == "__main__":
    main()
