"""A small job as a training process describes it to its transport, and memory with two ends."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_worker.link import shared_memory
from atoll_worker.link.messages import Boundary, Configure
from atoll_worker.link.shared_memory import MemoryPlan, SharedMemory
from atoll_worker.link.socket import Link
from atoll_worker.model.staging import DirectStaging
from atoll_worker.training.replica import TrainingOwner, TransportProcess
from unit.worker.fake_transport import FakeProcess

TENSORS = tuple(
    TensorSpec(name=name, shape=(3, 4), dtype="float32", merge="rda") for name in ("a", "b")
)
RUN_FILE = RunFile(
    job="tiny",
    regions=(Region(name="here", learners=1),),
    steps=10,
    sync=Sync(fragments=2, period=4),
)
CONFIGURE = Configure(
    run_file=RUN_FILE,
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
