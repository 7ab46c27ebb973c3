"""Lanes over a link between regions: how fast a learner exchanges its model, and who carries what.

In tests/: python -m bench.lanes [--megabytes N] [--rounds N]

A learner trains in rounds (it waits in `step()` while its offer goes up, is merged and made
durable, and the new version comes down) with a real shard process behind a line on which every
connection has the rate and the delay of one long TCP connection. What it trains is nothing, so the
seconds of a round are those of the exchange. All cases alternate in one run.

- hosts  ranks, each as a host of its own; every further one has a lane process
- lanes  ATOLL_LANES, connections of each host
- share  the largest share of all bytes that one connection has carried, times the lanes of all
  hosts: 1.00 where all carry the same
- memory the most that a rank shares with the process beside it, times the hosts, over the memory
  for the whole model (a capture and a value to adopt, f32): 1.00 where each has just its share
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from atoll import Job, Learner
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.transfer.codecs import Wire
from bench.table import show
from bench.wan import Line, carried, wan
from local.forked import to_their_end
from local.leftovers import shared_bytes
from wire.raw_peer import shard

CASES: Final = ((1, 1), (1, 2), (1, 4), (2, 1), (4, 1), (2, 2))  # hosts, lanes
LINE: Final = Line(megabytes_per_second=8.0, delay_milliseconds=25.0)
PERIOD: Final = 2  # steps of a round
LAYERS: Final = 8
BYTES: Final = 4  # of a value on the wire, which is f32


def run_file(rounds: int) -> RunFile:
    """One learner in rounds of two steps; the first one warms up."""
    return RunFile(
        job="lanes",
        regions=(Region(name="here", learners=1),),
        shards=1,
        steps=PERIOD * (rounds + 1),
        sync=Sync(
            fragments=1,
            period=PERIOD,
            overlap=0,
            lockstep=True,
            grace=False,
            wire_up=Wire.F32,
            wire_down=Wire.F32,
        ),
    )


def width_of(megabytes: float) -> int:
    return int((megabytes * 1e6 / BYTES / LAYERS) ** 0.5)


def be(
    rank: int, hosts: int, lanes: int, endpoint: str, megabytes: float, run: RunFile, folder: Path
) -> None:
    """One rank, which is a host of its own; the first writes the seconds of each round."""
    os.environ |= {"ATOLL_HOST": str(rank), "ATOLL_LANES": str(lanes)}
    width = width_of(megabytes)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    if hosts > 1:
        meeting = f"file://{folder}/meeting"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=hosts)
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    seconds: list[float] = []
    learner = Learner(model)
    learner._job = Job(
        run_file=run, endpoints=(endpoint,), slot="here-0", uid="u", instance="u-1", lanes=lanes
    )
    with learner:
        (folder / f"{rank}.memory").write_text(str(shared_bytes()))
        while not learner.finished:
            begun = time.perf_counter()
            learner.step(tokens=1)
            seconds.append(time.perf_counter() - begun)
    if rank == 0:
        of_rounds = [sum(seconds[n : n + PERIOD]) for n in range(0, len(seconds), PERIOD)]
        (folder / "seconds").write_text(" ".join(map(str, of_rounds[1:])))
    if hosts > 1:
        dist.destroy_process_group()


def measure(
    hosts: int, lanes: int, megabytes: float, rounds: int
) -> tuple[list[float], float, float]:
    """The seconds of each round, and share and memory as the table has them."""
    run = run_file(rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = folder / "counts"
        with shard(folder, run_file=run) as served, wan(served.endpoint, LINE, counts) as endpoint:
            if to_their_end(hosts, be, hosts, lanes, endpoint, megabytes, run, folder):
                sys.exit("a rank has failed")
            deadline = time.monotonic() + 30.0
            while not counts.exists() or len(carried(counts)) < 1 + hosts * lanes:
                if time.monotonic() > deadline:
                    sys.exit("a connection does not end")
                time.sleep(0.1)
            bulk = sorted((sum(each) for each in carried(counts)), reverse=True)[: hosts * lanes]
        seconds = [float(each) for each in (folder / "seconds").read_text().split()]
        memory = max(int((folder / f"{rank}.memory").read_text()) for rank in range(hosts))
    whole = LAYERS * width_of(megabytes) ** 2 * 2 * BYTES
    return seconds, max(bulk) * hosts * lanes / sum(bulk), memory * hosts / whole


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--megabytes", type=float, default=8.0, help="of the model, in f32")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--repeat", type=int, default=2, help="of all cases, in turn")
    flags = arguments.parse_args()
    seconds: dict[tuple[int, int], list[float]] = {case: [] for case in CASES}
    shares: dict[tuple[int, int], list[float]] = {case: [] for case in CASES}
    memories: dict[tuple[int, int], float] = {}
    for _ in range(flags.repeat):
        for case in CASES:
            found, share, memories[case] = measure(*case, flags.megabytes, flags.rounds)
            seconds[case] += found
            shares[case].append(share)
    of_one = statistics.median(seconds[CASES[0]])
    show(
        f"rounds of a model of {flags.megabytes:g} MB, {LINE.megabytes_per_second:g} MB/s and"
        f" {LINE.delay_milliseconds:g} ms for each connection",
        ("hosts", "lanes", "s of a round", "speed", "share", "memory"),
        [
            (*case, taken, of_one / taken, max(shares[case]), memories[case])
            for case, each in seconds.items()
            for taken in [statistics.median(each)]
        ],
    )


if __name__ == "__main__":
    main()
