"""How long the ranks of a learner wait at a step boundary to agree on what they do there.

In tests/: python -m bench.agreement [--steps N]

FSDP2 over gloo on this machine, 2 and 4 ranks with one thread each. The head draws commands when
the optimizer begins to step (`hook`), or only at the boundary (`none`), which then waits for all of
a broadcast. Both alternate in one run. Milliseconds from the call of `commands` to its return, of
all ranks; and of a whole step, to compare with.
"""

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from atoll_worker.ranks.broadcasts import Broadcast
from atoll_worker.ranks.control import Control
from bench.table import show
from local.forked import to_their_end

RANKS = (2, 4)
WIDTH, LAYERS, BATCH = 384, 6, 64
MODES = ("hook", "none")


def be(rank: int, ranks: int, folder: Path, steps: int) -> None:
    """One rank writes its milliseconds: a line for each mode, then one of whole steps."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks
    )
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    control = Control(begin=partial(Broadcast, group), rank=rank)
    mesh = init_device_mesh("cpu", (ranks,))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    found: dict[str, list[float]] = {name: [] for name in (*MODES, "step")}
    for step in range(2 * steps + 10):
        begun = time.perf_counter()
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        if step % 2 == 0:
            control.draw()  # as the hook does, when the optimizer begins to step
        optimizer.step()
        optimizer.zero_grad()
        at_boundary = time.perf_counter()
        control.commands()
        ended = time.perf_counter()
        if step >= 10:  # the first ones warm up
            found[MODES[step % 2]].append(1e3 * (ended - at_boundary))
            found["step"].append(1e3 * (ended - begun))
    lines = (" ".join(map(str, found[name])) for name in (*MODES, "step"))
    (folder / str(rank)).write_text("\n".join(lines))
    dist.barrier()
    dist.destroy_process_group()


def measure(ranks: int, steps: int) -> list[list[float]]:
    """For each mode, and for whole steps, the milliseconds of all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        if to_their_end(ranks, be, ranks, Path(folder), steps):
            sys.exit("a rank has failed")
        files = [(Path(folder) / str(rank)).read_text().splitlines() for rank in range(ranks)]
    return [
        [float(each) for file in files for each in file[number].split()]
        for number in range(len(MODES) + 1)
    ]


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=200)
    steps = arguments.parse_args().steps
    rows = []
    for ranks in RANKS:
        *waits, whole = measure(ranks, steps)
        numbers = [
            each for wait in waits for each in (statistics.median(wait), percentile(wait, 95))
        ]
        rows.append([ranks, *numbers, statistics.median(whole)])
    columns = ["ranks", *(f"{mode} {which} ms" for mode in MODES for which in ("p50", "p95"))]
    show("the wait for the head's commands", [*columns, "step ms"], rows)


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


if __name__ == "__main__":
    main()
