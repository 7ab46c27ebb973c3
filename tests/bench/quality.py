"""Held-out loss: Decoupled DiLoCo with three learners against plain DiLoCo on the same tokens.

In tests/: python -m bench.quality [--json]
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

from bench import jobs
from bench.table import show

SIZE = {"layers": 2, "heads": 4, "width": 64, "context": 64}  # 119 thousand parameters
BATCH = 16
LEARNERS = 3
HELDOUT_BYTES = 1 << 18
PERIOD = 16
OUTER = {"learningRate": "0.7", "momentum": "0.5"}  # docs/algorithm.md, outer optimizer
SYSTEMS: dict[str, Mapping[str, Any]] = {
    "Decoupled DiLoCo": {"fragments": 4, "period": PERIOD, "overlap": 2, "outer": OUTER},
    "DiLoCo": {"preset": "DiLoCo", "period": PERIOD, "outer": OUTER},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One run."""

    system: str
    seed: int
    loss: float  # of the export, nats per byte
    tokens: int  # trained by all learners
    participation: float  # of learners in commits
    seconds: float


def size_arguments() -> list[str]:
    """The model's size, for learners and `atoll eval`."""
    return [word for name, value in SIZE.items() for word in (f"--{name}", str(value))]


def measure(system: str, seed: int, arguments: argparse.Namespace, out: Path) -> Found:
    """Train with `atoll run`, measure with `atoll eval`."""
    begun = time.monotonic()
    words = [*size_arguments(), "--batch", str(BATCH)]
    words += ["--step-milliseconds-min", str(arguments.milliseconds)]
    regions = {f"region-{n}": words for n in range(LEARNERS)}
    job = jobs.manifest(regions, steps=arguments.steps, sync=SYSTEMS[system], seed=seed)
    jobs.run(job, out)
    summary = json.loads((out / "run" / "summary.json").read_text())
    return Found(
        system=system,
        seed=seed,
        loss=jobs.loss(out, [*size_arguments(), "--heldout-bytes", str(HELDOUT_BYTES)]),
        tokens=summary["tokens"]["trained"],
        participation=summary["participation"],
        seconds=time.monotonic() - begun,
    )


def parser(description: str | None) -> argparse.ArgumentParser:
    """What this script and bench.ddp have in common."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--steps", type=int, default=400)
    found.add_argument("--seeds", type=int, default=3)
    found.add_argument("--json", action="store_true")
    return found


def main() -> None:
    """Run and print; systems take turns, so that a busy machine hits all alike."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--milliseconds", type=float, default=60.0, help="no step is faster, so all are as fast"
    )
    given = arguments.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            for system in SYSTEMS:
                found.append(measure(system, seed, given, Path(folder) / f"{system}-{seed}"))
                sys.stderr.write(f"{found[-1]}\n")
    report(found, given)


def report(found: Sequence[Found], arguments: argparse.Namespace) -> None:
    """Every run as JSON, or a table of means and spreads."""
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(each) for each in found]) + "\n")
        return
    rows = []
    for system in dict.fromkeys(each.system for each in found):
        runs = [each for each in found if each.system == system]
        losses = [each.loss for each in runs]
        rows.append(
            (
                system,
                f"{statistics.mean(losses):.4f}",
                f"{statistics.stdev(losses) if len(losses) > 1 else 0:.4f}",
                " ".join(f"{loss:.4f}" for loss in losses),
                f"{statistics.mean(each.tokens for each in runs):,.0f}",
                statistics.mean(each.participation for each in runs),
                statistics.mean(each.seconds for each in runs),
            )
        )
    show(
        f"Held-out nats per byte, {LEARNERS} learners, {arguments.steps} steps, by seed",
        ("system", "mean", "deviation", "losses", "tokens", "participation", "seconds"),
        rows,
    )


if __name__ == "__main__":
    main()
