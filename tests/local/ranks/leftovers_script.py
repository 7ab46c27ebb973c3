"""Ranks of two hosts enter a Learner with mistakes that are seen late.

    python leftovers_script.py FOLDER

Beside the first rank of each host a process has been started by then, which has to end; the last
rank has started one for nothing, as `atoll-worker` does. FOLDER/RANK.json has for every mistake
the error on that rank, and what it has left behind. The ranks are forks of this process.
"""

import gc
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from atoll import Learner, SpecError
from atoll_protos.run import Region, RunFile
from atoll_worker.training import process
from local.forked import script_of
from local.leftovers import beside, shared_bytes

HOSTS = (0, 1, 1)  # of the ranks
RANKS = len(HOSTS)
SECONDS_MAX = 60.0  # of a collective in which a rank is missing
RUN_FILE = RunFile(job="j", regions=(Region(name="here", learners=1),), shards=1, steps=9)
NOWHERE = ("127.0.0.1:1",)


def learner(model: nn.Module, export_files: tuple[str, ...] = ()) -> Learner:
    """Of a job, whose shards nobody asks."""
    return Learner(
        model, run_file=RUN_FILE, endpoints=NOWHERE, slot="here-0", export_files=export_files
    )


def a_file_that_the_head_cannot_read() -> Learner:
    """Only the head looks for it."""
    return learner(nn.Linear(4, 4), ("no-such-tokenizer.json",))


def a_frozen_tensor_that_one_rank_has_cut() -> Learner:
    """What does not travel is compared when the head asks for it."""
    model = nn.Linear(4, 4)
    values, mesh = torch.zeros(4), init_device_mesh("cpu", (RANKS,))
    if dist.get_rank():
        values = DTensor.from_local(values, mesh, [Replicate()])
    model.frozen = nn.Parameter(values, requires_grad=False)
    return learner(model)


MISTAKES: Mapping[str, Callable[[], Learner]] = {
    each.__name__: each
    for each in (a_file_that_the_head_cannot_read, a_frozen_tensor_that_one_rank_has_cut)
}


def refusal_of(made: Learner) -> str:
    """What it says when it is opened."""
    try:
        made.open()
    except SpecError as error:
        return str(error)
    raise AssertionError("it was not refused")


def be(rank: int, folder: Path) -> None:
    """One rank: all mistakes in turn."""
    os.environ["ATOLL_HOST"] = str(HOSTS[rank])
    temporary = folder / f"temporary-{rank}"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=SECONDS_MAX),
    )
    said = {}
    for name, make in MISTAKES.items():
        process.prepare()
        refusal = refusal_of(make())
        gc.collect()
        files = [each.name for each in temporary.rglob("*")]
        said[name] = {
            "refusal": refusal,
            "left": [beside(os.getpid()), shared_bytes(), files],
        }
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    script_of(RANKS, be)
