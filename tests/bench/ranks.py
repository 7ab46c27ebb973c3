"""A learner of several ranks: a slice to the head and back, against torch's full_tensor.

In tests/: python -m bench.ranks [--rounds N]

FSDP2 over gloo on this machine, 2 and 4 ranks with one thread each. All cases alternate in one run,
so that what else the machine does is the same for all. Milliseconds of a slice, which is the
slowest rank's time, for:

- gather       the slice comes to the head, as a capture does it
- deal         the head's values come into the shards of all ranks, as an adoption does it
- full_tensor  every rank gets each tensor of the slice whole
- distribute   every rank gets its shard of each tensor from the head (distribute_tensor)
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from atoll_protos.job.layout import Slice, build_layout
from atoll_worker.model.parameters import travelling
from atoll_worker.model.staging import assign
from atoll_worker.ranks.boxes import TravellingTensor
from atoll_worker.ranks.redistribution import Redistribution, open_exchange
from bench.table import show
from local.forked import to_their_end

RANKS = (2, 4)
WIDTH, LAYERS, WORDS, FRAGMENTS = 448, 8, 2048, 8
CASES = ("gather", "deal", "full_tensor", "distribute")


class Block(nn.Module):
    """The matrices and vectors of a transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))


class Model(nn.Module):
    """20 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))


def model() -> nn.Module:
    """Sharded block by block, and the rest in the root."""
    made = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in made.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(made, mesh=mesh)
    return made


def cases(
    exchange: Redistribution, places: list[TravellingTensor], owned: Slice
) -> dict[str, Callable[[], object]]:
    """What is timed, each collective."""
    tensors = [places[piece.tensor].tensor for piece in owned.pieces]
    sharded = [each for each in tensors if isinstance(each, DTensor)]
    values = exchange.gather(owned)
    head = dist.get_rank() == 0
    full: list[Tensor] = [
        each if head else torch.empty_like(each) for each in (s.full_tensor() for s in sharded)
    ]

    def deal() -> None:
        pairs, _ = exchange.deal(owned, values)
        assign(pairs, 0.0)

    def distribute() -> None:
        for each, whole in zip(sharded, full, strict=True):
            each.copy_(distribute_tensor(whole, each.device_mesh, each.placements))

    return {
        "gather": lambda: exchange.gather(owned),
        "deal": deal,
        "full_tensor": lambda: [each.full_tensor() for each in sharded],
        "distribute": distribute,
    }


@torch.no_grad()
def be(rank: int, ranks: int, folder: Path, rounds: int) -> None:
    """One rank; the first writes the medians and the elements of a slice."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks
    )
    made = model()
    places = list(travelling(made))
    exchange = open_exchange([made], places, group=None, control=None)
    layout = build_layout(exchange.table.specs, FRAGMENTS, 1)
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    of_slices = [cases(exchange, places, owned) for owned in layout.slices]
    for number in range(rounds + 1):
        for of_slice in of_slices:
            for name, case in of_slice.items():
                dist.barrier()
                begun = time.perf_counter()
                case()
                taken = torch.tensor(time.perf_counter() - begun)
                dist.all_reduce(taken, dist.ReduceOp.MAX)
                if number:  # the first round warms up
                    seconds[name].append(float(taken))
    if rank == 0:
        elements = statistics.mean(owned.element_count for owned in layout.slices)
        found = [elements * 4 / 1e6, *(1e3 * statistics.median(seconds[name]) for name in CASES)]
        (folder / "found").write_text(" ".join(map(str, found)))
    dist.barrier()
    dist.destroy_process_group()


def measure(ranks: int, rounds: int) -> list[float]:
    """MB of a slice, and milliseconds of each case."""
    with tempfile.TemporaryDirectory() as folder:
        if to_their_end(ranks, be, ranks, Path(folder), rounds):
            sys.exit("a rank has failed")
        return [float(each) for each in (Path(folder) / "found").read_text().split()]


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    rows = []
    for ranks in RANKS:
        size, gather, deal, full, distribute = measure(ranks, rounds)
        rows.append([ranks, size, gather, deal, full, distribute, gather / full])
    columns = ["ranks", "slice MB", *(f"{name} ms" for name in CASES), "gather/full"]
    show("a slice of an FSDP2 model, f32, gloo", columns, rows)


if __name__ == "__main__":
    main()
