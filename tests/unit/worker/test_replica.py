import dataclasses
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import Wire
from atoll_protos.layout import build_layout
from atoll_protos.run import Sync
from atoll_protos.tensors import FLOATS, from_bytes, packed
from atoll_worker.link import memory
from atoll_worker.link import socket as links
from atoll_worker.link.messages import (
    Adopt,
    Boundary,
    Capture,
    Finished,
    GiveCompanion,
    JobLength,
    Leaving,
    Tick,
    Warned,
)
from atoll_worker.link.messages import Companion as Told
from atoll_worker.link.socket import Link
from atoll_worker.ranks.reading import Reader
from atoll_worker.training import process
from atoll_worker.training.checksums import PLAIN_READER
from atoll_worker.training.companion import Companion
from atoll_worker.training.owner import Owner
from atoll_worker.training.parameters import pairs, travelling
from atoll_worker.training.replica import Replica
from atoll_worker.training.staging import DirectStaging, Pairs, Ticket
from unit.worker.fake_transport import RUN_FILE, FakeProcess

BOUNDARY = Boundary(
    own_steps=0,
    tokens=1,
    loss=0.0,
    step_seconds=0.0,
    blocked_seconds=0.0,
    cursor=0,
    adopted=(),
    captured=(),
)


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


@contextmanager
def replica_of(model: nn.Module, sync: Sync) -> Iterator[tuple[Replica, Link, SlowStaging]]:
    """A replica on two shards, the transport's end of its link, and its staging."""
    places = travelling(model)
    layout = build_layout([place.spec for place in places], 2, 2)
    plan = links.memory_plan(layout, sync, observer=False)
    descriptor = memory.create()
    memory.resize(descriptor, plan)
    shared = memory.attach(plan, descriptor)
    os.close(descriptor)
    ours, theirs = socket.socketpair()
    staging = SlowStaging()
    replica = Replica(
        places=places,
        specs=layout.tensors,
        slices={(each.shard, each.fragment): each for each in layout.slices},
        owner=Owner(
            memory=shared,
            staging=staging,
            link=Link(ours),
            process=FakeProcess(threading.Thread()),  # type: ignore[arg-type]
        ),
    )
    other = Link(theirs)
    yield replica, other, staging
    replica.owner.link.close()
    other.close()


@pytest.fixture
def slow() -> Iterator[tuple[Replica, Link, SlowStaging]]:
    """See `replica_of`."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    with replica_of(model, RUN_FILE.sync) as made:
        yield made


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


def test_a_boundary_leaves_when_the_device_has_done_its_work_and_in_order(
    slow: tuple[Replica, Link, SlowStaging],
) -> None:
    replica, other, staging = slow
    other.send(Capture(slices=((1, 0),)))
    step(replica, 1)
    step(replica, 2)
    assert other.receive() == []
    assert replica.owner.memory.counter(1, 0) == 1
    staging.tickets[0].over = True
    step(replica, 3)
    received = boundaries(other)
    assert [each.own_steps for each in received] == [1, 2, 3]
    assert [each.captured for each in received] == [((1, 0),), (), ()]
    assert replica.owner.memory.counter(1, 0) == 2


def test_a_region_is_whole_only_when_no_copy_into_it_is_under_way(
    slow: tuple[Replica, Link, SlowStaging],
) -> None:
    replica, other, staging = slow
    for own_steps in (1, 2):
        other.send(Capture(slices=((0, 1),)))
        step(replica, own_steps)
    staging.tickets[0].over = True
    replica.settle()
    assert [each.own_steps for each in boundaries(other)] == [1]
    assert replica.owner.memory.counter(0, 1) == 1, "the second copy is under way"
    staging.tickets[1].over = True
    replica.settle()
    assert [each.own_steps for each in boundaries(other)] == [2]
    assert replica.owner.memory.counter(0, 1) == 2


def test_with_wait_the_device_is_waited_for(slow: tuple[Replica, Link, SlowStaging]) -> None:
    replica, other, staging = slow
    other.send(Capture(slices=((0, 1),)))
    work = replica.apply_commands()
    replica.report(BOUNDARY, work, wait=True)
    assert staging.tickets[0].waited
    assert other.receive() == [BOUNDARY]


def test_two_calls_for_one_slice_at_one_boundary_are_one_capture(
    slow: tuple[Replica, Link, SlowStaging],
) -> None:
    replica, other, staging = slow
    other.send(Capture(slices=((0, 1), (0, 0))))
    other.send(Capture(slices=((0, 1),)))
    assert replica.apply_commands().captured == [(0, 1), (0, 0)]
    assert len(staging.tickets) == 2


def test_adoptions_fill_the_set_of_held_slices_and_ticks_only_grow(
    slow: tuple[Replica, Link, SlowStaging],
) -> None:
    replica, other, _ = slow
    other.send(Tick(tick=4))
    other.send(Adopt(shard=1, fragment=1, number=3, blend=0.0))
    other.send(Tick(tick=3))
    assert replica.apply_commands().adopted == [(1, 1, 3)]
    assert replica.held == {(1, 1)}
    assert replica.tick == 4
    for place in replica.places:
        assert torch.isfinite(place.tensor).all()


def test_the_newest_length_of_the_job_is_kept(slow: tuple[Replica, Link, SlowStaging]) -> None:
    replica, other, _ = slow
    assert replica.length is None
    for steps in (200, 300):
        other.send(JobLength(steps=steps, tokens=None))
    replica.apply_commands()
    assert replica.length == JobLength(steps=300, tokens=None)


def test_a_finished_model_has_the_final_values_though_it_was_trained_on(
    slow: tuple[Replica, Link, SlowStaging],
) -> None:
    replica, other, _ = slow
    for number, key in enumerate(replica.slices):
        region = from_bytes(
            replica.owner.memory.adopt(*key), FLOATS[replica.owner.memory.plan.adopt_encoding]
        )
        region.fill_(float(number))
        other.send(Adopt(shard=key[0], fragment=key[1], number=9, blend=0.0))
    step(replica, 1)
    final = {place.spec.name: place.tensor.clone() for place in replica.places}
    for place in replica.places:
        place.tensor.add_(0.5)  # a step of the optimizer
    other.send(Finished(again=tuple(replica.slices)))
    assert not replica.apply_commands().adopted
    assert replica.finished
    for place in replica.places:
        assert torch.equal(place.tensor, final[place.spec.name])


def test_parameters_take_the_base_and_buffers_take_it_in_f32_bit_for_bit_rule_18() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    constant = torch.tensor([0.1, 0.2, 0.3])
    model.register_buffer("constant", constant.clone())
    sync = dataclasses.replace(RUN_FILE.sync, wire_down=Wire.BF16)
    with replica_of(model, sync) as (replica, other, _):
        own = {place.spec.name: place.tensor.clone() for place in replica.places}
        for key in replica.slices:
            owned = replica.slices[key]
            region = packed(replica.owner.memory.adopt(*key), pb.BF16, owned.form)
            for theta, part in pairs(replica.places, owned, region):
                part.copy_(theta)
            other.send(Adopt(shard=key[0], fragment=key[1], number=1, blend=0.0))
        step(replica, 1)
        for place in replica.places:
            name, found = place.spec.name, place.tensor
            kept = own[name] if name == "constant" else own[name].bfloat16().float()
            assert torch.equal(found, kept), name


def test_a_device_that_has_failed_does_not_keep_the_job_from_hearing_why_a_learner_leaves(
    slow: tuple[Replica, Link, SlowStaging], monkeypatch: pytest.MonkeyPatch
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


class Given(Companion):
    """A companion whose writing goes as the test says."""

    fails = False

    def write(
        self, descriptor: int, offset: int, *, changed: bool, reader: Reader = PLAIN_READER
    ) -> int:
        if self.fails:
            raise OSError(12, "Cannot allocate memory")
        return os.pwrite(descriptor, b"changed" if changed else b"whole", offset)


@pytest.mark.parametrize("fails", [False, True])
def test_a_companion_is_given_on_command_and_costs_no_training_when_it_cannot_be(
    fails: bool,
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with replica_of(model, Sync(fragments=2, period=4)) as (replica, transport, _):
        replica.owner.memory_fd = memory.create()
        given = Given(models=[model], places=(), adapters=("",), files={}, frozen_digest="")
        given.fails, replica.companion = fails, given
        for changed in (False, True):
            transport.send(GiveCompanion(changed=changed))
        replica.apply_commands()
        replica.owner.link.flush()
        transport.wait(1.0)
        told = transport.receive()
        if fails:
            assert [type(each) for each in told] == [Warned, Warned]
            assert "Cannot allocate memory" in str(told[0])
            return
        assert told == [
            Told(changed=False, byte_count=len(b"whole")),
            Told(changed=True, byte_count=len(b"changed")),
        ]
        for changed, content in ((False, b"whole"), (True, b"changed")):
            offset = memory.companion_offset(replica.owner.memory.plan, changed=changed)
            assert os.pread(replica.owner.memory_fd, 7, offset).startswith(content)


def test_tensors_that_keep_their_first_values_in_the_export_are_told_of() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with replica_of(model, Sync(fragments=2, period=4)) as (replica, transport, _):
        replica.owner.memory_fd = memory.create()
        replica.companion = Given(
            models=[model], places=(), adapters=("",), files={}, frozen_digest="", stale=["table"]
        )
        transport.send(GiveCompanion(changed=True))
        replica.apply_commands()
        replica.owner.link.flush()
        transport.wait(1.0)
        _, warned = transport.receive()
    assert isinstance(warned, Warned)
    assert "has the first values of tensors that training has changed" in warned.reason
    assert warned.reason.endswith("table")
