"""Learners, models and jobs that tests of the worker use, and memory with two ends."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_worker.learner import Learner
from atoll_worker.link import shared_memory
from atoll_worker.link.messages import Boundary, Configure
from atoll_worker.link.shared_memory import MemoryPlan, SharedMemory
from atoll_worker.link.socket import Link
from atoll_worker.model.staging import DirectStaging
from atoll_worker.training.replica import TrainingOwner, TransportProcess
from unit.worker.fake_transport import (
    RUN_FILE,
    SECONDS_MAX,
    FakeProcess,
    FakeTransport,
    job_of,
    playing,
)


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def learner_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, run_file: RunFile = RUN_FILE
) -> Learner:
    learner = Learner(model, optimizer)
    learner._job = job_of(run_file)
    return learner


@contextmanager
def entered(learner: Learner, reason: str = "", **begun: Any) -> Iterator[FakeTransport]:
    """A learner that has begun; the test speaks for its transport. It leaves, for that reason.

    Keywords as of `FakeTransport.begin`.
    """
    fakes: list[FakeTransport] = []

    def begin(fake: FakeTransport) -> None:
        fakes.append(fake)
        fake.begin(**begun)

    with playing(begin, stays=True) as threads:
        try:
            with learner:
                threads[0].join(SECONDS_MAX)
                yield fakes[0]
        finally:
            found = fakes[0].until_leaving().reason
            fakes[0].end.link.close()
            assert found == reason or not reason


def train_for_ever(learner: Learner) -> None:
    while True:
        learner.step(tokens=1)


def tiny_model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def learn(model: nn.Module, optimizer: Optimizer) -> None:
    """One optimizer step."""
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def train(learner: Learner, model: nn.Module, optimizer: Optimizer) -> None:
    """Until the end, with a step() for each step."""
    while not learner.finished:
        learn(model, optimizer)
        learner.step(tokens=4)


TENSORS = tuple(
    TensorSpec(name=name, shape=(3, 4), dtype="float32", merge="rda") for name in ("a", "b")
)
CONFIGURE = Configure(
    run_file=RunFile(
        job="tiny",
        regions=(Region(name="here", learners=1),),
        steps=10,
        sync=Sync(fragments=2, period=4),
    ),
    layout=build_layout(TENSORS, 2, 1),
    slot="here-0",
    uid="u",
    instance="u-1",
    endpoints=("localhost:1",),
    telemetry_folder="",
    observer=False,
)
BOUNDARY = Boundary(
    own_steps=1,
    tokens=1,
    loss=0.0,
    step_seconds=0.0,
    blocked_seconds=0.0,
    cursor=0,
    adopted=(),
    captured=(),
)


@contextmanager
def descriptor_of(plan: MemoryPlan) -> Iterator[int]:
    """New memory of that size."""
    descriptor = shared_memory.create()
    shared_memory.resize(descriptor, plan)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def both_ends(plan: MemoryPlan) -> tuple[SharedMemory, SharedMemory]:
    """One memory as each of its two processes has it."""
    with descriptor_of(plan) as descriptor:
        return shared_memory.attach(plan, descriptor), shared_memory.attach(plan, descriptor)


@contextmanager
def owner_of(plan: MemoryPlan, staging: DirectStaging) -> Iterator[tuple[TrainingOwner, Link]]:
    """What a training process has of its transport, which has ended, and the other end's link."""
    ours, theirs = (Link(each) for each in socket.socketpair())
    ended = threading.Thread()
    ended.start()
    child = TransportProcess(link=ours, process=FakeProcess(ended))  # type: ignore[arg-type]
    owner = TrainingOwner(child=child, memory=both_ends(plan)[0], staging=staging)
    try:
        yield owner, theirs
    finally:
        ours.close()
        theirs.close()


class Quantised(torch.Tensor):
    """Made of int8 values and a scale; no operation is implemented but `detach`."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> "Quantised":
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.whole, self.scale = values, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["whole", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, *others: Any) -> "Quantised":
        return Quantised(parts["whole"], parts["scale"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].whole, args[0].scale)
        raise NotImplementedError(f"{func} is not implemented for a quantised tensor")
