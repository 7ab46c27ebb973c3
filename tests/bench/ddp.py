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
- to the loss: seconds to the lowest loss that both reach, without the start
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

import torch

from atoll_operator.api.job.process_inputs import EVALUATE, TRAIN
from atoll_protos.environment import Env, of_learner, of_process
from atoll_protos.job.run_file import Expected, Region, RunFile, Sync
from atoll_protos.transfer.codecs import Wire
from atoll_worker import __main__ as atoll_worker
from bench import ddp_ranks
from bench.ddp_found import Run, figures, steps_of
from bench.jobs import lines
from bench.results import option, publish
from wire.fake_pods import Pod, pods
from wire.fixtures import shard_command

DDP: Final = ("DDP-f32", "DDP-bf16")
ATOLL: Final = {"Atoll-bf16": Wire.BF16, "Atoll-int4": Wire.INT4}  # in both directions
SIZE: Final = {"layers": 4, "heads": 4, "width": 64, "context": 32}  # 0.2 million parameters
DATA: Final = ("asyncio", "email", "http", "idlelib", "json", "multiprocessing", "unittest")
SHARD_PORT: Final = 7700
START_SECONDS: Final = 300
SKIPPED: Final = 1  # steps of DDP, which deals out its buckets anew after the first
SECONDS_MAX: Final = 3600.0
LOG_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all runs have in common."""

    learners: int
    steps: int
    ddp_steps: int  # over a slow link
    seed: int
    size: Mapping[str, int]
    batch: int
    milliseconds: float  # no step is faster
    every: int  # steps between two measurements of the held-out loss
    heldout_bytes: int
    data: Sequence[str]  # files and folders of text

    @property
    def regions(self) -> list[str]:
        return [f"region-{number}" for number in range(self.learners)]

    @property
    def slots(self) -> list[str]:
        return [f"{region}-0" for region in self.regions]

    @property
    def tokens(self) -> int:
        """Of a step of all learners."""
        return self.learners * self.batch * self.size["context"]

    @property
    def measured(self) -> list[int]:
        """Steps after which DDP's loss is taken."""
        return sorted({self.ddp_steps, *range(self.every, self.steps + 1, self.every)})


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Of the command line of the example."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def training(setting: Setting, milliseconds: float) -> list[str]:
    """Options for steps that are no shorter than that."""
    pace = {"batch": setting.batch, "step-milliseconds-min": milliseconds}
    return [*words_of({**setting.size, **pace}), "--data", *setting.data]


def part(environment: Mapping[str, str], *words: str) -> int:
    """What a pod of a learner or an evaluator runs; returns its exit code."""
    torch.set_num_threads(1)
    os.environ.update(environment)
    return atoll_worker.main(words)


def to_their_end(processes: Sequence[ForkProcess], islands: Sequence[Pod]) -> None:
    """Wait for them; raises RuntimeError with what was logged if one fails."""
    for process in processes:
        process.join(SECONDS_MAX)
        if process.exitcode:
            logs = [f"{pod.name}: {pod.log.read_text()[-LOG_CHARACTERS:]}" for pod in islands]
            raise RuntimeError("\n".join(logs))


def data_parallel(
    setting: Setting, folder: Path, *, bf16: bool, megabits: float
) -> ddp_ranks.Trained:
    """All steps without pauses where the links have no limit, else the first few at their pace."""
    folder.mkdir()
    stop = setting.ddp_steps if megabits else setting.steps
    task = ddp_ranks.Task(
        slots=setting.slots,
        words=training(setting, setting.milliseconds if megabits else 0.0),
        seed=setting.seed,
        steps=setting.steps,
        stop=stop,
        measured=[step for step in setting.measured if step <= stop],
        heldout_bytes=setting.heldout_bytes,
        out=str(folder / "trained"),
        bf16=bf16,
    )
    with pods(folder, *setting.regions, megabits=megabits) as islands:
        ranks = [each.fork(ddp_ranks.train, rank, task) for rank, each in enumerate(islands)]
        to_their_end(ranks, islands)
    return ddp_ranks.read(task.out)


def data_parallel_run(
    setting: Setting, folder: Path, system: str, megabits: float, free: ddp_ranks.Trained
) -> Run:
    """Over slow links; `free` is what the same ranks have trained without a limit."""
    limited = data_parallel(setting, folder, bf16="bf16" in system, megabits=megabits)
    losses = dict(zip(setting.measured, free.losses, strict=True))
    if limited.losses[-1] != losses[setting.ddp_steps]:
        raise RuntimeError(f"{system}: {limited.losses[-1]} over slow links, else {losses}")
    began, ended = limited.began[SKIPPED:], limited.ended[SKIPPED:]
    seconds = statistics.median(e - b for b, e in zip(began, ended, strict=True))
    return Run(
        system=system,
        megabits=megabits,
        step_seconds=seconds,
        tokens_per_second=setting.tokens / seconds,
        merged=1.0,
        curve=[(step * seconds, loss) for step, loss in losses.items()],
    )


def decoupled_run(setting: Setting, folder: Path, system: str, megabits: float, sync: Sync) -> Run:
    """A whole job of Atoll over slow links."""
    folder.mkdir()
    regions = tuple(Region(name=each, learners=1) for each in setting.regions)
    job = RunFile(
        job="ddp",
        regions=regions,
        seed=setting.seed,
        steps=setting.steps,
        sync=sync,
        evaluator_every=setting.every,
    )
    slots = folder / "slots.json"
    slots.write_text(Expected(regions=regions, start_seconds=START_SECONDS).to_json())
    with pods(folder, *setting.regions, megabits=megabits) as islands:
        home = islands[0]
        listen = f"0.0.0.0:{SHARD_PORT}"
        shard = shard_command(folder, listen, "--slots-file", str(slots), run_file=job)
        home.start(shard, os.environ)
        shared = {
            **of_process(run_file=f"{folder}/run.json", endpoints=f"{home.name}:{SHARD_PORT}"),
            Env.TELEMETRY_DIR: str(folder),
        }
        words = (TRAIN[-1], *training(setting, setting.milliseconds))
        learners = [
            each.fork(part, {**shared, **of_learner(region=each.name, slot=slot)}, *words)
            for each, slot in zip(islands, setting.slots, strict=True)
        ]
        held = {**setting.size, "heldout-bytes": setting.heldout_bytes}
        words = (EVALUATE[-1], *words_of(held), "--data", *setting.data)
        to_their_end([*learners, home.fork(part, shared, *words)], islands)
    return found_of(setting, folder, system, megabits)


def found_of(setting: Setting, folder: Path, system: str, megabits: float) -> Run:
    """Read the files of a finished job."""
    files = [lines(folder / "learners" / f"{slot}.jsonl") for slot in setting.slots]
    learners = [steps_of(file) for file in files]
    seconds = setting.learners / sum(1 / each.seconds for each in learners)
    counts = [line["counts"] for line in lines(folder / "tape.jsonl") if line.get("counts")][-1]
    first = min(each.began for each in learners)
    return Run(
        system=system,
        megabits=megabits,
        step_seconds=seconds,
        tokens_per_second=setting.tokens / seconds,
        merged=counts["merged"] / counts["trained"],
        curve=[
            (line["time"] - line["seconds"] - first, line["loss"])
            for line in lines(folder / "evaluations.jsonl")
            if "loss" in line
        ],
    )


def measured(setting: Setting, links: list[float], folder: Path) -> Iterator[Run]:
    """All systems over the links of each rate; systems take turns."""
    free = {
        system: data_parallel(setting, folder / system, bf16="bf16" in system, megabits=0.0)
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
    about = f"Seed {given.seed}; times as fast as DDP f32, then as DDP bf16."
    publish(given, [*figures(runs, DDP)], about=about)


if __name__ == "__main__":
    main()
