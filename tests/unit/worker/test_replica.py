import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
import torch
from torch import nn

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.codecs import Wire
from atoll_worker.link.messages import (
    Adopt,
    Boundary,
    Capture,
    Finished,
    JobLength,
    Leaving,
    Tick,
)
from atoll_worker.link.shared_memory import SharedMemory, memory_plan
from atoll_worker.link.socket import Link
from atoll_worker.model.parameters import FLOATS, from_bytes, packed, pairs, travelling
from atoll_worker.model.staging import DirectStaging, Pairs
from atoll_worker.model.tickets import Ticket
from atoll_worker.training import replica as process
from atoll_worker.training.replica import Replica, state_of
from unit.worker.fake_transport import RUN_FILE
from unit.worker.fixtures import BOUNDARY, owner_of


@dataclass
class Later:
    """Device work that ends when the test says so."""

    over: bool = False
    waited: bool = False

    def done(self) -> bool:
        return self.over

    def wait(self) -> None:
        self.waited = True


@dataclass(frozen=True, slots=True)
class SlowStaging(DirectStaging):
    """A device whose copies take until the test says so."""

    tickets: list[Later] = field(default_factory=list)

    def capture(self, pairs: Pairs) -> Ticket:
        DirectStaging.capture(self, pairs)
        self.tickets.append(Later())
        return self.tickets[-1]


Made: TypeAlias = tuple[Replica, Link, SlowStaging]


@contextmanager
def replica_of(model: nn.Module, sync: Sync = RUN_FILE.sync) -> Iterator[Made]:
    """A replica on two shards, the transport's end of its link, and its staging."""
    places = travelling(model)
    layout = build_layout([place.spec for place in places], 2, 2)
    staging = SlowStaging()
    with owner_of(memory_plan(layout, sync, observer=False), staging) as (owner, transport):
        replica = Replica(places=places, state=state_of(layout), owner=owner)
        yield replica, transport, staging


@pytest.fixture
def slow() -> Iterator[Made]:
    """See `replica_of`."""
    with replica_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))) as made:
        yield made


def memory_of(replica: Replica) -> SharedMemory:
    assert replica.owner is not None
    return replica.owner.memory


def step(replica: Replica, own_steps: int) -> None:
    work = replica.apply_commands()
    boundary = dataclasses.replace(
        BOUNDARY, own_steps=own_steps, adopted=tuple(work.adopted), captured=tuple(work.captured)
    )
    replica.report(boundary, work)


def boundaries(link: Link) -> list[Boundary]:
    found = link.receive()
    assert all(isinstance(message, Boundary) for message in found)
    return [message for message in found if isinstance(message, Boundary)]


def test_a_boundary_leaves_when_the_device_has_done_its_work_and_in_order(slow: Made) -> None:
    replica, other, staging = slow
    other.send(Capture(slices=((1, 0),)))
    step(replica, 1)
    step(replica, 2)
    assert other.receive() == []
    assert memory_of(replica).counter(1, 0) == 1
    staging.tickets[0].over = True
    step(replica, 3)
    received = boundaries(other)
    assert [each.own_steps for each in received] == [1, 2, 3]
    assert [each.captured for each in received] == [((1, 0),), (), ()]
    assert memory_of(replica).counter(1, 0) == 2


def test_a_region_is_whole_only_when_no_copy_into_it_is_under_way(slow: Made) -> None:
    replica, other, staging = slow
    for own_steps in (1, 2):
        other.send(Capture(slices=((0, 1),)))
        step(replica, own_steps)
    staging.tickets[0].over = True
    replica.settle()
    assert [each.own_steps for each in boundaries(other)] == [1]
    assert memory_of(replica).counter(0, 1) == 1, "the second copy is under way"
    staging.tickets[1].over = True
    replica.settle()
    assert [each.own_steps for each in boundaries(other)] == [2]
    assert memory_of(replica).counter(0, 1) == 2


def test_with_wait_the_device_is_waited_for(slow: Made) -> None:
    replica, other, staging = slow
    other.send(Capture(slices=((0, 1),)))
    work = replica.apply_commands()
    replica.report(BOUNDARY, work, wait=True)
    assert staging.tickets[0].waited
    assert other.receive() == [BOUNDARY]


def test_a_boundary_carries_out_what_was_asked_for_once(slow: Made) -> None:
    replica, other, staging = slow
    assert replica.state.length is None
    other.send(Capture(slices=((0, 1), (0, 0))))
    other.send(Capture(slices=((0, 1),)))
    for tick, steps in ((4, 200), (3, 300)):
        other.send(Tick(tick=tick))
        other.send(JobLength(steps=steps, tokens=None))
    other.send(Adopt(shard=1, fragment=1, number=3, blend=0.0))
    work = replica.apply_commands()
    assert (work.captured, len(staging.tickets)) == ([(0, 1), (0, 0)], 2)
    assert (work.adopted, replica.held) == ([(1, 1, 3)], {(1, 1)})
    assert replica.state.tick == 4, "ticks only grow"
    assert replica.state.length == JobLength(steps=300, tokens=None), "the newest counts"
    assert all(torch.isfinite(place.tensor).all() for place in replica.places)


def test_a_finished_model_has_the_final_values_though_it_was_trained_on(slow: Made) -> None:
    replica, other, _ = slow
    for number, key in enumerate(replica.state.slices):
        region = from_bytes(
            memory_of(replica).adopt(*key), FLOATS[memory_of(replica).plan.adopt_encoding]
        )
        region.fill_(float(number))
        other.send(Adopt(shard=key[0], fragment=key[1], number=9, blend=0.0))
    step(replica, 1)
    final = {place.spec.name: place.tensor.clone() for place in replica.places}
    for place in replica.places:
        place.tensor.add_(0.5)  # a step of the optimizer
    other.send(Finished(again=tuple(replica.state.slices)))
    assert not replica.apply_commands().adopted
    assert replica.state.finished
    for place in replica.places:
        assert torch.equal(place.tensor, final[place.spec.name])


def test_parameters_take_the_base_and_buffers_take_it_in_f32_bit_for_bit_rule_18() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    constant = torch.tensor([0.1, 0.2, 0.3])
    model.register_buffer("constant", constant.clone())
    sync = dataclasses.replace(RUN_FILE.sync, wire_down=Wire.BF16)
    with replica_of(model, sync) as (replica, other, _):
        own = {place.spec.name: place.tensor.clone() for place in replica.places}
        for key in replica.state.slices:
            owned = replica.state.slices[key]
            region = packed(memory_of(replica).adopt(*key), pb.BF16, owned.form)
            for theta, part in pairs(replica.places, owned, region):
                part.copy_(theta)
            other.send(Adopt(shard=key[0], fragment=key[1], number=1, blend=0.0))
        step(replica, 1)
        for place in replica.places:
            name, found = place.spec.name, place.tensor
            kept = own[name] if name == "constant" else own[name].bfloat16().float()
            assert torch.equal(found, kept), name


def test_a_device_that_has_failed_does_not_keep_the_job_from_hearing_why_a_learner_leaves(
    slow: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, other, _ = slow
    step(replica, 1)
    other.send(Capture(slices=((1, 0),)))
    step(replica, 2)

    def fail(ticket: Later) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Later, "wait", fail)
    monkeypatch.setattr(process, "stop", lambda *_: None)
    replica.leave("RuntimeError: CUDA error: device-side assert triggered")
    first, second = other.receive()
    assert isinstance(first, Boundary)
    assert isinstance(second, Leaving)
    assert "device-side assert" in second.reason
