"""Quality of what Atoll trains, by experiments that anybody can repeat.

In tests/: python -m bench.science [--only b c] [--scale small] [--resume] --out DIR
A part of them: --only a --sizes 10M --cells "10M, M = 2" --arms data-parallel Decoupled --seeds 1

Each run is a file in DIR/runs, so that a queue of hours may be cut at any time: `--resume` goes on
with what is there. The figures of all that is there are printed at the end; `--json FILE` writes
them for docs/numbers.md (bench/results.py). What is subtracted is the run of the same seed.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench.results import option, publish
from bench.science import queue, report
from bench.science.engine import train
from bench.science.experiments import SCALES, Experiment, Scale, experiments
from bench.science.setting import SIZES, Setting

Runs = Mapping[tuple[str, str, int], Setting]


def options(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.science",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    letters = [*experiments(SCALES["small"])]
    parser.add_argument("--only", nargs="+", choices=letters, default=letters)
    parser.add_argument("--scale", choices=SCALES, default="small")
    ours = parser.add_argument_group("in place of what the scale has")
    ours.add_argument("--seeds", type=int)
    ours.add_argument("--sizes", nargs="+", choices=SIZES)
    ours.add_argument("--merges", type=int, nargs="+")
    part = parser.add_argument_group("in place of all of an experiment")
    part.add_argument("--cells", nargs="+", metavar="NAME", default=[])
    part.add_argument("--arms", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--resume", action="store_true", help="go on with what is in DIR")
    parser.add_argument("--out", type=Path, metavar="DIR")
    option(parser)
    given = parser.parse_args(words)
    if not given.list and given.out is None:
        parser.error("--out is missing")
    begins = given.out is not None and not given.resume and not given.list
    if begins and given.out.exists() and any(given.out.iterdir()):
        parser.error(f"{given.out} is not empty: give --resume to go on with it")
    known = [experiments(scaled(given))[letter] for letter in given.only]
    for kind in ("cells", "arms"):
        names = dict.fromkeys(name for each in known for name in getattr(each, kind))
        if unknown := sorted({*getattr(given, kind)} - {*names}):
            parser.error(f"--{kind}: no {'; '.join(unknown)}; there are {'; '.join(names)}")
    return given


def scaled(given: argparse.Namespace) -> Scale:
    """The scale, with what stands in its place."""
    fields = {name: getattr(given, name) for name in ("seeds", "sizes", "merges")}
    return replace(SCALES[given.scale], **{k: each for k, each in fields.items() if each})


def main(words: list[str] | None = None) -> int:
    """Make the runs and the page; 1 if a run failed."""
    given = options(words)
    scale = scaled(given)
    all_ = experiments(scale)
    wanted = {letter: all_[letter].narrowed(given.cells, given.arms) for letter in given.only}
    runs = {letter: each.runs(scale) for letter, each in wanted.items()}
    if given.list:
        listed(wanted, runs)
        return 0
    settings = [setting for each in runs.values() for setting in each.values()]
    failed = queue.work(given.out, settings, train, given.workers)
    results = {letter: made(given.out, each) for letter, each in runs.items()}
    several = f"{scale.seeds} seeds: the mean, and ± in 95% of all cases."
    about = f"Virtual time; {several if scale.seeds > 1 else 'one seed.'}"
    publish(given, report.figures(wanted, results), about=about)
    return 1 if failed else 0


def made(folder: Path, runs: Runs) -> dict[tuple[str, str, int], queue.Result]:
    """Those that are there."""
    found = {key: queue.result(folder, setting) for key, setting in runs.items()}
    return {key: each for key, each in found.items() if each is not None}


def listed(wanted: Mapping[str, Experiment], runs: Mapping[str, Runs]) -> None:
    """Print the experiments."""
    for letter, each in wanted.items():
        sys.stdout.write(f"({letter}) {each.title}: {len(runs[letter])} runs\n")


if __name__ == "__main__":
    raise SystemExit(main())
