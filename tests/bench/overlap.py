"""Time of the training thread in `learner.step`, and of a fast learner beside a slow one.

In tests/: python -m bench.overlap [--json FILE]
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import jobs
from bench.results import Figure, option, publish
from bench.table import show

SLOWER = 5
STEP_SHARE_MAX = 0.02  # goals
TRAINING_SHARE_MIN = 0.95
WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the lines of one learner have of its training thread."""

    case: str
    slot: str
    steps: int
    step_milliseconds: float  # median, outside learner.step
    blocked_milliseconds: float  # median, inside
    blocked_milliseconds_p99: float
    step_share: float  # of wall time inside learner.step
    training_share: float  # of wall time outside


def shares(case: str, out: Path, slot: str) -> Found:
    """From learners/SLOT.jsonl, without the first tenth."""
    lines = jobs.steps(out, slot)
    lines = lines[int(WARM_UP_SHARE * len(lines)) :]
    wall_seconds = lines[-1]["time"] - lines[0]["time"]
    busy = [line["step_seconds"] for line in lines[1:]]
    blocked = [line["blocked_seconds"] for line in lines[1:]]
    return Found(
        case=case,
        slot=slot,
        steps=len(busy),
        step_milliseconds=1e3 * statistics.median(busy),
        blocked_milliseconds=1e3 * statistics.median(blocked),
        blocked_milliseconds_p99=1e3 * statistics.quantiles(blocked, n=100)[-1],
        step_share=sum(blocked) / (sum(busy) + sum(blocked)),
        training_share=sum(busy) / wall_seconds,
    )


def median(rounds: Sequence[Found]) -> Found:
    """Field by field."""
    first = rounds[0]
    fields = {
        name: statistics.median(getattr(each, name) for each in rounds)
        for name, value in asdict(first).items()
        if isinstance(value, float)
    }
    return Found(case=first.case, slot=first.slot, steps=first.steps, **fields)


def paced(arguments: argparse.Namespace, milliseconds: float) -> list[str]:
    """The built-in example with little compute in steps of that length: the rest is sleep."""
    size = ["--layers", arguments.layers, "--width", arguments.width, "--context", 32]
    return [str(word) for word in [*size, "--batch", 1, "--step-milliseconds-min", milliseconds]]


def computed(arguments: argparse.Namespace) -> list[str]:
    """The same model with as much compute as `--batch` asks for, and no sleep."""
    size = ["--layers", arguments.layers, "--width", arguments.width]
    words = [*size, "--batch", arguments.batch, "--step-milliseconds-min", 0]
    return [str(word) for word in words]


def cases(arguments: argparse.Namespace) -> dict[str, dict[str, list[str]]]:
    """Regions and their arguments by case."""
    fast, slow = arguments.milliseconds, SLOWER * arguments.milliseconds
    found = {
        f"{length:g} ms, mostly sleep": {name: paced(arguments, length) for name in ("one", "two")}
        for length in (fast, slow)
    }
    return {
        "all compute": {name: computed(arguments) for name in ("one", "two")},
        **found,
        f"beside one {SLOWER} times slower": {
            "fast": paced(arguments, fast),
            "slow": paced(arguments, slow),
        },
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="of the fastest step")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4, help="where steps are all compute")
    option(parser)
    arguments = parser.parse_args()
    rounds: dict[tuple[str, str], list[Found]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for case, regions in cases(arguments).items():
                fastest = min(float(words[-1]) for words in regions.values())
                ticks = int(1e3 * arguments.seconds / (fastest or arguments.milliseconds))
                out = Path(folder) / f"{number}-{case.replace(' ', '-')}"
                jobs.run(jobs.manifest(regions, steps=ticks, sync=jobs.TINY), out)
                for region in regions:
                    found = shares(case, out, f"{region}-0")
                    rounds.setdefault((case, region), []).append(found)
    report([median(each) for each in rounds.values()], arguments)


def report(found: Sequence[Found], arguments: argparse.Namespace) -> None:
    """As a table, and for docs/numbers.md."""
    rows = [
        (
            each.case,
            each.slot,
            each.step_milliseconds,
            each.blocked_milliseconds,
            each.blocked_milliseconds_p99,
            100 * each.step_share,
            100 * each.training_share,
        )
        for each in found
    ]
    columns = ("case", "learner", "step ms", "inside ms", "p99 ms", "inside %", "training %")
    show(
        f"Inside learner.step, medians of {arguments.rounds} runs on {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; after a sleep the caches are cold\n"
        f"goals: inside < {STEP_SHARE_MAX:.0%}, a fast one training > {TRAINING_SHARE_MIN:.0%}",
        columns,
        rows,
    )
    figures = [
        Figure(what=f"{each.case}, {each.slot}: {what}", values=[100 * share], unit="%")
        for each in found
        for what, share in (("inside", each.step_share), ("training", each.training_share))
    ]
    publish(arguments, figures, about=f"Medians of {arguments.rounds} runs.")


if __name__ == "__main__":
    main()
