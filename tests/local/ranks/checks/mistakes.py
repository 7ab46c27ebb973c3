"""Checks of a mistake of any rank: every rank refuses it, in one sentence, and none of them hangs.

The sentence names the field, the problem and the remedy.
"""

import gc
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import SGD

from atoll import Job, Learner
from atoll_protos.job.run_file import Region, RunFile
from local.leftovers import beside, shared_bytes
from local.ranks.checks.agreement import refused
from local.ranks.models import RANKS, misplaced

RUN_FILE = RunFile(job="j", regions=(Region(name="here", learners=1),), shards=1, steps=9)
NOWHERE = ("127.0.0.1:1",)
HOSTS = (0, 0, 1, 1)  # of the ranks


def is_other() -> bool:
    """Whether this is the one rank that makes the mistake."""
    return dist.get_rank() == 1


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def flat_parameters() -> Learner:
    model, cpu = two_layers(), torch.device("cpu")
    model[0] = FullyShardedDataParallel(model[0], use_orig_params=True, device_id=cpu)
    return Learner(model)


def shards_that_do_not_tile() -> Learner:
    model = two_layers()
    model[0].bias = nn.Parameter(misplaced(init_device_mesh("cpu", (RANKS,)), 2 * RANKS + 2))
    return Learner(model)


def a_part_that_is_missing() -> Learner:
    model = two_layers()
    fully_shard(model)
    return Learner(model[0] if is_other() else [model[0], nn.ModuleDict({"1": model[1]})])


def another_rate() -> Learner:
    model = two_layers()
    return Learner(model, SGD(model.parameters(), lr=0.25 if is_other() else 0.5))


def no_module() -> Learner:
    """One rank sees it before it meets the others."""
    model = two_layers()
    return Learner(SGD(model.parameters(), lr=1.0) if is_other() else model)  # type: ignore[arg-type]


def an_optimizer_of_another_model() -> Learner:
    model = two_layers()
    return Learner(model, SGD((two_layers() if is_other() else model).parameters(), lr=1.0))


def of_a_job(model: nn.Module) -> Learner:
    """Its shards nobody asks."""
    made = Learner(model)
    made._job = Job(run_file=RUN_FILE, endpoints=NOWHERE, slot="here-0", uid="u", instance="u-1")
    return made


def a_frozen_tensor_that_one_rank_has_cut() -> Learner:
    """What does not travel is compared when the head asks for it."""
    model = nn.Linear(4, 4)
    values, mesh = torch.zeros(4), init_device_mesh("cpu", (RANKS,))
    if is_other():
        values = DTensor.from_local(values, mesh, [Replicate()])
    model.frozen = nn.Parameter(values, requires_grad=False)
    return of_a_job(model)


EARLY: Mapping[Callable[[], Learner], tuple[str, str, str]] = {
    flat_parameters: ("model.0: ", "FSDP1", "fully_shard"),
    shards_that_do_not_tile: ("model.0.bias: ", "has a shard of shape", "Shard and Replicate"),
    a_part_that_is_missing: ("model.", "do not make up the tensor", "give the Learner all modules"),
    lambda: Learner(nn.Linear(4, 4 + is_other())): (
        "model.bias: ",
        "shape: (4,) on rank 0, (5,) on 1",
        "on every rank",
    ),
    another_rate: ("optimizer: ", "lr: 0.5 on rank 0, 0.25 on 1", "same settings"),
    lambda: Learner(two_layers().requires_grad_(False)): (
        "model: ",
        "has no trainable parameter",
        "model that is trained",
    ),
    no_module: ("model: ", "rank 1: SGD is no torch.nn.Module", "Learner(model, optimizer)"),
    an_optimizer_of_another_model: ("optimizer: ", "rank 1: SGD steps none", "on_adopt"),
}
LATE: Mapping[Callable[[], Learner], tuple[str, str, str]] = {
    a_frozen_tensor_that_one_rank_has_cut: ("model.frozen: ", "ranks 0 and 1", "shard"),
}


def check_refusal(make: Callable[[], Learner], words: tuple[str, str, str]) -> None:
    said = str(refused(make().open))
    everybody = [""] * RANKS
    dist.all_gather_object(everybody, said)
    assert everybody == [said] * RANKS
    field, problem, remedy = words
    assert said.startswith(field), said
    assert problem in said, said
    assert remedy in said.partition(";")[2], said


def check_mistakes_that_are_seen_at_once() -> None:
    """The learner is alone, so nothing is started; then all enter without a mistake."""
    for make, words in EARLY.items():
        check_refusal(make, words)
    Learner(two_layers()).open().close()
    stage = nn.ModuleDict({str(dist.get_rank()): two_layers().requires_grad_(is_other())})
    learner = Learner(stage, SGD(stage.parameters(), lr=1.0) if is_other() else None)
    learner.schedule(lambda progress: 1.0 - progress)
    learner.open().close()


def check_mistakes_that_are_seen_late() -> None:
    """They leave nothing behind: no process, no shared memory, no temporary file or folder.

    Beside the first rank of each host a process has been started by then, which has to end.
    """
    os.environ["ATOLL_HOST"] = str(HOSTS[dist.get_rank()])
    with tempfile.TemporaryDirectory() as temporary:
        before, tempfile.tempdir = tempfile.tempdir, temporary
        for make, words in LATE.items():
            check_refusal(make, words)
            gc.collect()
            files = [each.name for each in Path(temporary).rglob("*")]
            assert (beside(os.getpid()), shared_bytes(), files) == (None, 0, []), words
        tempfile.tempdir = before
    del os.environ["ATOLL_HOST"]
