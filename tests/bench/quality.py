"""Held-out loss after some merges of each fragment: outer momenta, and data-parallel training.

In tests/: python -m bench.quality [--out FILE] [--json FILE]

All systems train as many tokens. Each finished run is one JSON line in FILE, and a run that is
there already is not made again, so that a run of hours can be cut into pieces.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import ddp, jobs
from bench.results import Figure, option, publish
from bench.table import show

SIZE = {"layers": 2, "heads": 4, "width": 32, "context": 32}  # 33 thousand parameters
BATCH = 8
LEARNERS = 3
HELDOUT_BYTES = 1 << 17
PERIODS = {10: 16, 25: 16, 75: 8}  # H, by the number of merges of each fragment
DECOUPLED = {"fragments": 4, "overlap": 2}
DATA_PARALLEL = "data-parallel"
BASE = "0.7/0.9"  # with which the others are compared
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    BASE: {**DECOUPLED, "outer": {"learningRate": "0.7", "momentum": "0.9"}},
    "0.7/0.5": {**DECOUPLED, "outer": {"learningRate": "0.7", "momentum": "0.5"}},
    "auto": DECOUPLED,
    DATA_PARALLEL: {},
    "DiLoCo": {"preset": "DiLoCo", "outer": {"learningRate": "0.7", "momentum": "0.5"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One run."""

    system: str
    merges: int  # of each fragment, that the length of the job allows
    seed: int
    loss: float  # of the export, nats per byte
    tokens: int  # trained by all learners
    late: float  # share of them in no merge, since their offer came too late
    participation: float  # of learners in merges
    seconds: float

    @property
    def key(self) -> tuple[str, int, int]:
        return self.system, self.merges, self.seed


def measure(system: str, merges: int, seed: int, milliseconds: float, out: Path) -> Found:
    """Train, and measure the result."""
    begun = time.monotonic()
    period = PERIODS[merges]
    steps = merges * period
    words = [word for name, value in SIZE.items() for word in (f"--{name}", str(value))]
    train = [*words, "--batch", str(BATCH)]
    regions = [f"region-{n}" for n in range(LEARNERS)]
    tokens = {"trained": steps * LEARNERS * BATCH * SIZE["context"], "late": 0}
    participation = 1.0
    if system == DATA_PARALLEL:
        slots = [f"{region}-0" for region in regions]
        loss = ddp.heldout(
            slots, train, seed=seed, steps=steps, heldout_bytes=HELDOUT_BYTES, out=out
        )
    else:
        train += ["--step-milliseconds-min", str(milliseconds)]
        sync = {"period": period, **SYSTEMS[system]}
        job = jobs.manifest(dict.fromkeys(regions, train), steps=steps, sync=sync, seed=seed)
        jobs.run(job, out)
        summary = json.loads((out / "run" / "summary.json").read_text())
        tokens, participation = summary["tokens"], summary["participation"]
        loss = jobs.loss(out, [*words, "--heldout-bytes", str(HELDOUT_BYTES)])
    return Found(
        system=system,
        merges=merges,
        seed=seed,
        loss=loss,
        tokens=tokens["trained"],
        late=tokens["late"] / tokens["trained"],
        participation=participation,
        seconds=time.monotonic() - begun,
    )


def options() -> argparse.Namespace:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__)
    known = [name for name in SYSTEMS if name != "DiLoCo"]
    found.add_argument("--systems", nargs="+", choices=SYSTEMS, default=known)
    found.add_argument("--merges", nargs="+", type=int, choices=PERIODS, default=[*PERIODS])
    found.add_argument("--seeds", type=int, default=3)
    found.add_argument("--milliseconds", type=float, default=40.0, help="no step is faster")
    found.add_argument("--out", type=Path, help="each run as a JSON line; runs in it are kept")
    option(found)
    return found.parse_args()


def main() -> None:
    """Run and print; systems take turns, so that a busy machine hits all alike."""
    given = options()
    lines = given.out.read_text().splitlines() if given.out and given.out.exists() else []
    found = [Found(**json.loads(line)) for line in lines]
    done = {each.key for each in found}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            for merges in given.merges:
                for system in given.systems:
                    if (system, merges, seed) in done:
                        continue
                    out = Path(folder) / f"{system.replace('/', '-')}-{merges}-{seed}"
                    found.append(measure(system, merges, seed, given.milliseconds, out))
                    line = json.dumps(asdict(found[-1])) + "\n"
                    sys.stderr.write(line)
                    if given.out:
                        with given.out.open("a") as file:
                            file.write(line)
    figures = []
    for merges in given.merges:
        figures += report([each for each in found if each.merges == merges], merges)
    publish(given, figures, about=f"{given.seeds} seeds; the mean, the least and the most.")


def report(found: Sequence[Found], merges: int) -> list[Figure]:
    """Means with ranges; what is subtracted is of the same seed."""
    base = {each.seed: each.loss for each in found if each.system == BASE}
    rows, figures = [], []
    for system in dict.fromkeys(each.system for each in found):
        runs = sorted((each for each in found if each.system == system), key=lambda x: x.seed)
        losses = [each.loss for each in runs]
        gains = [each.loss - base[each.seed] for each in runs if each.seed in base]
        columns = {"loss": losses} if system == BASE else {"loss": losses, f"minus {BASE}": gains}
        figures += [
            Figure(what=f"{merges} merges, {system}: {name}", values=mean_and_range(of))
            for name, of in columns.items()
            if of
        ]
        rows.append(
            (
                system,
                spread(losses, ""),
                spread(gains, "+") if system != BASE and gains else "",
                f"{statistics.mean(each.late for each in runs):.0%}",
                statistics.mean(each.participation for each in runs),
                statistics.mean(each.seconds for each in runs),
            )
        )
    show(
        f"Held-out nats per byte, {LEARNERS} learners, {merges} merges of each fragment,"
        f" period {PERIODS[merges]}: mean (smallest to largest over seeds)",
        ("system", "loss", f"minus {BASE}", "late", "participation", "seconds"),
        rows,
    )
    return figures


def mean_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, the least and the most."""
    return statistics.mean(values), min(values), max(values)


def spread(values: Sequence[float], sign: str) -> str:
    """A mean and its range."""
    mean, low, high = mean_and_range(values)
    return f"{mean:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


if __name__ == "__main__":
    main()
