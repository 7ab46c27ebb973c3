"""The ranks of one learner as forks of this process, without a launcher."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

SECONDS_MAX = 600.0  # of a collective in which a rank is missing


def to_their_end(ranks: int, be: Callable[..., None], *arguments: object) -> int:
    """Call `be(rank, *arguments)` in a process of each rank; 0 if all have ended well."""
    forks, each_one = multiprocessing.get_context("fork"), (be, *arguments)
    processes = [
        forks.Process(target=in_one_thread, args=(rank, *each_one)) for rank in range(ranks)
    ]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    return max(abs(each.exitcode or 0) for each in processes)


def in_one_thread(rank: int, be: Callable[..., None], *arguments: object) -> None:
    """Call `be(rank, *arguments)` with one thread a rank.

    A fork makes torch's pool of threads again at its first use. A backward pass and its caller
    that come first together end the process ("Invalid thread pool!"), so this call is the first.
    """
    torch.set_num_threads(1)
    be(rank, *arguments)


@contextmanager
def met(folder: Path, rank: int, ranks: int) -> Iterator[None]:
    """Inside, the ranks are a group of gloo that has met in the folder."""
    meeting, limit = f"file://{folder}/meeting", timedelta(seconds=SECONDS_MAX)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=limit)
    yield
    dist.destroy_process_group()


def script_of(ranks: int, be: Callable[[int, Path], None]) -> NoReturn:
    """All of a script whose one argument is a folder: `be(rank, folder)` on every rank."""
    sys.exit(to_their_end(ranks, be, Path(sys.argv[1])))
