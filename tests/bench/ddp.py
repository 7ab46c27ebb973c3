"""Atoll and DistributedDataParallel over the same slow links: tokens a second, seconds to a loss.

In tests/, as root: python -m bench.ddp [--megabits 0.2 0.4 1.6] [--json FILE]

Each region is a network namespace with one link of that rate in each direction (tbf). It has one
learner, or one rank of DDP with the same model, batches, schedule and length of a step. Atoll's
shard is in the first region, whose link so carries what all others send and get. Nothing delays
packets: a round trip would cost DDP 2 (M - 1) halves of it in every step.

A step computes little, because all share a few cores, and waits for the rest of its length. In DDP
the first third of it is the forward pass, in which no gradient travels.

- DDP over a slow link makes a few steps, whose median counts. Its losses do not depend on the link:
  a run without a limit has them all, and must agree in the last of those few steps.
- merged: the share of the trained tokens that merges have taken in
- kB/step, link: over the busiest link in its busier direction, and its share of the rate
- to the loss: seconds to the lowest loss that both reach, without the start
"""

import argparse
import dataclasses
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import Wire
from bench.ddp_found import Run, figures, report
from bench.ddp_runs import Setting, data_parallel, data_parallel_run, decoupled_run
from bench.results import option, publish

DDP: Final = ("DDP-f32", "DDP-bf16")
ATOLL: Final = {"Atoll-bf16": Wire.BF16, "Atoll-int4": Wire.INT4}  # in both directions
SIZE: Final = {"layers": 4, "heads": 4, "width": 64, "context": 32}  # 0.2 million parameters
DATA: Final = ("asyncio", "email", "http", "idlelib", "json", "multiprocessing", "unittest")


def measured(setting: Setting, links: list[float], folder: Path) -> Iterator[Run]:
    """All systems over the links of each rate; systems take turns."""
    free = {
        system: data_parallel(setting, folder / system, bf16="bf16" in system, megabits=0.0)[0]
        for system in DDP
    }
    for megabits in links:
        for system, trained in free.items():
            out = folder / f"{system}-{megabits}"
            yield data_parallel_run(setting, out, system, megabits, trained)
        for system, wire in ATOLL.items():
            sync = Sync(wire_up=wire, wire_down=wire)
            yield decoupled_run(setting, folder / f"{system}-{megabits}", system, megabits, sync)


def options() -> argparse.Namespace:
    """The command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--megabits", nargs="+", type=float, default=[0.2, 0.4, 1.6])
    found.add_argument("--learners", type=int, default=4)
    found.add_argument("--steps", type=int, default=144, help="of each learner")
    found.add_argument("--ddp-steps", type=int, default=3, help="of DDP over a slow link")
    found.add_argument("--milliseconds", type=float, default=1500.0, help="no step is faster")
    found.add_argument("--batch", type=int, default=4)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--every", type=int, default=24, help="steps from one held-out loss on")
    found.add_argument("--heldout-bytes", type=int, default=1 << 13)
    option(found)
    return found.parse_args()


def main() -> None:
    """Run and print."""
    given = options()
    fields = {each.name for each in dataclasses.fields(Setting)} - {"size", "data"}
    texts = [str(Path(sysconfig.get_path("stdlib")) / name) for name in DATA]
    setting = Setting(size=SIZE, data=texts, **{name: vars(given)[name] for name in fields})
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for run in measured(setting, given.megabits, Path(folder)):
            sys.stderr.write(json.dumps(dataclasses.asdict(run)) + "\n")
            runs.append(run)
    report(
        f"{given.learners} learners, {given.steps} steps of {given.milliseconds:g} ms, seed"
        f" {given.seed}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        runs,
        DDP,
    )
    about = f"Seed {given.seed}; times as fast as DDP f32, then as DDP bf16."
    publish(given, [*figures(runs, DDP)], about=about)


if __name__ == "__main__":
    main()
