"""The ranks of one learner as forks of this process, without a launcher."""

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch


def to_their_end(ranks: int, be: Callable[..., None], *arguments: object) -> int:
    """Call `be(rank, *arguments)` in a process of each rank; 0 if all have ended well."""
    forks = multiprocessing.get_context("fork")
    processes = [forks.Process(target=be, args=(rank, *arguments)) for rank in range(ranks)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    return max(abs(each.exitcode or 0) for each in processes)


def script_of(ranks: int, be: Callable[[int, Path], None]) -> NoReturn:
    """All of a script whose one argument is a folder: `be(rank, folder)` on every rank."""
    torch.set_num_threads(1)
    sys.exit(to_their_end(ranks, be, Path(sys.argv[1])))
