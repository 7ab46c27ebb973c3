"""`atoll serve` and `atoll join` from houses behind NAT: share of time blocked, and seconds.

In tests/: python -m bench.houses [--megabits N ...] [--milliseconds N] [--steps N]
                                  [--step-seconds S] [--runs N]   (needs root)

A job with a house for each rate, of a byte model of 4 million parameters with int4 up. The link of
a house has so many Mbit/s up (tbf), and 0 is no limit; a round trip to it takes 60 ms. `used` is
the share of a link that the values take.

Blocked is the time inside `learner.step`, as a share of that of a step on a quiet machine. `core`
is what it computes, and `ready` what it waits for a core; `asleep` is all else, so the network has
at most that. Where learners share cores, `ready` says so, and is none of the network's.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import houses_script, jobs
from bench.results import Figure, option, publish
from bytegpt.model import ByteGPT, Size
from local.command import TESTS, commits, python_path
from local.machines.commands import Machine, commands_in
from local.machines.nat import V4, V6, behind_nat

SIZE: Final = Size(layers=5, heads=4, width=256, context=32)
TRAIN: Final = ["--layers=5", "--heads=4", "--width=256", "--context=32", "--batch=1"]
BITS: Final = 4
PERIOD: Final = 16
SYNC: Final = {**jobs.TINY, "period": PERIOD, "wire": {"up": "int4"}}
PARTS: Final = ("core", "ready", "asleep")
ABOUT: Final = (
    "Houses behind NAT, 4 million parameters, int4 up. Shares of the time that a step takes by"
    " itself, inside of `learner.step`: core, on a core; ready, no core is free; asleep, the rest."
    " Medians of the runs."
)
MOMENTS: Final = ("a line to type", "all have entered", "a merge", "complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of a house: its Mbit/s up, mean seconds of a step, and shares; blocked has three parts."""

    megabits: float
    step_seconds: float
    blocked: float
    core: float
    ready: float
    asleep: float
    used: float

    @property
    def name(self) -> str:
        return f"{self.megabits:g} Mbit/s" if self.megabits else "no limit"


def played(given: argparse.Namespace, folder: Path) -> tuple[list[Found], list[float]]:
    """A job to its end; the seconds are from the moment at which `atoll serve` is typed."""
    rates = dict(enumerate(given.megabits))
    pace = f"--step-milliseconds-min={1000 * given.step_seconds:.0f}"
    regions = [f"region-{n}" for n in rates]
    path = f"PYTHONPATH={python_path(TESTS)}"
    module = (sys.executable, "-m", houses_script.__name__)
    script = ("--", "env", path, *module, *TRAIN, pace)
    job, none = folder / "job.yaml", dict.fromkeys(regions, ())
    job.write_text(jobs.manifest(none, steps=given.steps, sync=SYNC, seed=given.seed))
    families = zip(itertools.cycle((V4, V6)), given.megabits, strict=False)
    out, began, moments = folder / "served", time.monotonic(), list[float]()
    with (
        behind_nat(folder, *families, milliseconds=given.milliseconds) as place,
        commands_in(folder) as here,
    ):
        words = ("serve", job, "--out", out, "--listen", "0.0.0.0:7700", "--output", "lines")
        server = here.atoll(out, *words, within=place.server.enter)
        line = server.says("ATOLL_TOKEN=")
        moments.append(time.monotonic() - began)
        houses = [
            here.join(line, region, "--region", region, *script, within=house.enter)
            for region, house in zip(regions, place.houses, strict=True)
        ]
        for region in regions:
            server.says(f"machine {region} has entered")
        moments.append(time.monotonic() - began)
        server.until(lambda: commits(out), "a merge")
        moments.append(time.monotonic() - began)
        if any(each.end() for each in (*houses, server)):
            raise RuntimeError(server.logs())
        moments.append(time.monotonic() - began)
    pairs = zip(houses, given.megabits, strict=True)
    return [found(house, rate, given.step_seconds) for house, rate in pairs], moments


def found(house: Machine, megabits: float, pace: float) -> Found:
    """From what the learner of a house has written; `pace`: seconds of a step by itself."""
    (path,) = (house.out / "learners").glob("*.jsonl")
    steps = [each for each in jobs.lines(path) if each.get("step_seconds", 0.0) > 0]
    clocks = jobs.lines(house.out / houses_script.NAME)[1:]  # the first one has begun with Start
    parts = {name: total(clocks, name) / len(clocks) / pace for name in PARTS}
    seconds = total(steps, "step_seconds") / len(steps)
    values = sum(each.numel() for each in ByteGPT(SIZE, seed=0).parameters())
    used = values * BITS / (PERIOD * seconds * megabits * 1e6) if megabits else 0.0
    blocked = sum(parts.values())
    return Found(megabits=megabits, step_seconds=seconds, blocked=blocked, used=used, **parts)


def total(steps: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(each[name] for each in steps))


def figures(runs: Sequence[tuple[list[Found], list[float]]]) -> Iterator[Figure]:
    """Medians over the runs."""
    for of_house in zip(*(houses for houses, _ in runs), strict=True):
        house = of_house[0].name
        for name in ("blocked", *PARTS, "used"):
            share = median(100 * getattr(each, name) for each in of_house)
            yield Figure(what=f"{house}: {name}", values=[share], unit="%")
        seconds = median(each.step_seconds for each in of_house)
        yield Figure(what=f"{house}: a step", values=[seconds], unit="s")
    for name, *each in zip(MOMENTS, *(moments for _, moments in runs), strict=True):
        yield Figure(what=name, values=[median(each)], unit="s")


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
