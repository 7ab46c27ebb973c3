"""What lies between the two processes of a learner: messages, the socket, the shared memory."""

import asyncio
import gc
import math
import os
import random
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import pytest
import torch

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import Wire
from atoll_worker.link import messages, shared_memory
from atoll_worker.link import socket as links
from atoll_worker.link.messages import (
    Boundary,
    Fail,
    Finished,
    Leaving,
    LoggedValues,
    Proceed,
    Start,
    Tick,
)
from atoll_worker.link.shared_memory import ALIGN_BYTES
from atoll_worker.link.socket import Link, LinkError, TransportEnd
from atoll_worker.model import parameters
from atoll_worker.model.parameters import from_bytes
from atoll_worker.ranks.redistribution import Box, Held
from unit.worker.fixtures import BOUNDARY, CONFIGURE, TENSORS, both_ends


@pytest.fixture
def both() -> Iterator[tuple[Link, Link]]:
    one, other = (Link(each) for each in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_in_order_whatever_the_socket_takes_at_once(
    both: tuple[Link, Link],
) -> None:
    one, other = both
    sent = [Fail(exit_code=number, reason="x" * 50_000) for number in range(40)]
    for message in sent:
        one.send(message)
    assert one.unsent, "the socket was meant to be too small"
    received: list[object] = []
    while len(received) < len(sent):
        received += other.receive()
        one.flush()
    assert received == sent
    assert one.unsent_bytes == 0


def test_a_tick_that_waits_gives_way_to_a_newer_one(both: tuple[Link, Link]) -> None:
    one, other = both
    one.send(Fail(exit_code=0, reason="x" * 10_000_000))
    for tick in range(5):
        one.send(Tick(tick=tick))
    one.send(Proceed())
    for tick in range(5, 9):
        one.send(Tick(tick=tick))
    received = []
    while one.unsent:
        received += other.receive()
        one.flush()
    received += other.receive()
    assert received[1:] == [Tick(tick=4), Proceed(), Tick(tick=8)]


def test_a_message_that_is_partly_written_is_never_replaced(both: tuple[Link, Link]) -> None:
    one, other = both
    filler = Fail(exit_code=0, reason="x" * 10_000_000)
    one.send(filler)
    one.unsent[0] = (True, one.unsent[0][1])  # as if it were a Tick, and part of it gone
    one.send(Tick(tick=1))
    received: list[object] = []
    while one.unsent:
        received += other.receive()
        one.flush()
    assert received + other.receive() == [filler, Tick(tick=1)]


def test_an_end_that_never_reads_is_an_error_and_not_a_growing_queue(
    both: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "UNSENT_BYTES_MAX", 1000)

    def forever() -> None:
        while True:
            both[0].send(Proceed())

    with pytest.raises(LinkError, match="unread"):
        forever()


def test_what_was_sent_before_the_end_is_still_received(both: tuple[Link, Link]) -> None:
    one, other = both
    one.send(Proceed())
    one.close()
    assert other.receive() == [Proceed()]
    assert other.closed


def test_sending_to_a_closed_end_is_no_error(both: tuple[Link, Link]) -> None:
    both[1].close()
    both[0].send(Proceed())
    assert both[0].closed


def transport_end() -> tuple[Link, TransportEnd]:
    ours, theirs = socket.socketpair()
    link = Link(ours)
    link.send(CONFIGURE)
    link.send(Leaving(reason="at once"))
    plan = shared_memory.memory_plan(build_layout(TENSORS, 2, 1), CONFIGURE.run_file.sync)
    descriptor = shared_memory.create()
    shared_memory.resize(descriptor, plan)
    try:
        return link, links.open_transport_end(theirs.detach(), descriptor)
    finally:
        os.close(descriptor)


async def received_by(end: TransportEnd, until: str) -> list[object]:
    """All messages until one of that kind, or the end."""
    messages: list[object] = []
    over = asyncio.Event()

    def on_message(message: object) -> None:
        messages.append(message)
        if type(message).__name__ == until:
            over.set()

    def on_end() -> None:
        messages.append("end")
        over.set()

    end.attach(asyncio.get_running_loop(), on_message, on_end)
    await asyncio.wait_for(over.wait(), 60)
    return messages


def test_the_transport_end_knows_its_job_and_receives_what_came_with_configure() -> None:
    link, end = transport_end()
    assert end.configure == CONFIGURE
    assert asyncio.run(received_by(end, "Leaving")) == [Leaving(reason="at once")]
    link.close()
    end.link.close()


def test_the_transport_end_reports_a_closed_link_once() -> None:
    link, end = transport_end()
    link.close()
    assert asyncio.run(received_by(end, "nothing")) == [Leaving(reason="at once"), "end"]
    end.link.close()


def test_the_transport_end_notices_its_parents_death_though_the_socket_is_still_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        monkeypatch.setattr(links, "creator_pid", lambda _: parent.pid)
        link, end = transport_end()
        assert parent.stdin is not None
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        assert asyncio.run(received_by(end, "nothing"))[-1] == "end"
    link.close()
    end.link.close()


def test_the_transport_end_writes_later_what_the_socket_does_not_take() -> None:
    link, end = transport_end()

    async def send() -> list[object]:
        end.attach(asyncio.get_running_loop(), lambda message: None, lambda: None)
        for number in range(40):
            end.send(Fail(exit_code=number, reason="x" * 50_000))
        received: list[object] = []
        while len(received) < 40:
            received += link.receive()
            await asyncio.sleep(0)
        return received

    assert len(asyncio.run(send())) == 40
    assert not end.link.unsent
    link.close()
    end.link.close()


SPEC = TensorSpec(name='a"\n\udcff', shape=(), dtype="float32", merge="rda")


@pytest.mark.parametrize(
    "value",
    [
        CONFIGURE,
        BOUNDARY,
        Start(incarnation=1 << 60, cursor=0, tick=-1, data_state=bytes(range(256))),
        Finished(again=((0, 1), (2, 3))),
        LoggedValues(values=(("loss", -0.0), ("", math.inf))),
        (Held(SPEC, Box((), ())), Held(SPEC, None)),
        {"name": {1, 2}, "other": {"lr": 1e-3}},
        (True, (), None, "", b""),
    ],
)
def test_values_arrive_as_they_were(value: object) -> None:
    assert repr(messages.decode(messages.encode(value))) == repr(value)  # which has types and signs


def test_floats_arrive_bit_for_bit() -> None:
    drawn = random.Random(3)
    values = tuple(drawn.uniform(-1, 1) * 2.0 ** drawn.randrange(-1060, 1020) for _ in range(1000))
    assert messages.decode(messages.encode(values)) == values
    assert math.isnan(messages.decode(messages.encode(math.nan)))


@dataclass
class Unknown:
    """Nothing has said that it may travel."""

    command: str = "rm"


def test_what_is_not_known_is_neither_sent_nor_made() -> None:
    with pytest.raises(TypeError, match="Unknown does not travel"):
        messages.encode((1, Unknown()))
    for name in ("Unknown", "eval", "os.system", "RunFile.from_json"):
        with pytest.raises(KeyError):
            messages.decode(b'{"":["%s","1"]}' % name.encode())
    with pytest.raises(ValueError, match="shorter"):
        messages.decode(b'{"":["Boundary",1]}')
    assert len(fields(Boundary)) > 1


LAYOUT = build_layout(
    [TensorSpec(name=f"t{i}", shape=(i + 1, 7), dtype="float32", merge="rda") for i in range(6)],
    fragments=2,
    shards=2,
)
SYNC = Sync(wire_down=Wire.BF16)
PLAN = shared_memory.memory_plan(LAYOUT, SYNC)


def test_both_ends_see_the_same_regions_and_no_two_regions_overlap() -> None:
    ours, theirs = both_ends(PLAN)
    for number, key in enumerate(PLAN.slices):
        from_bytes(ours.capture(*key), torch.float32).fill_(number + 1)
        from_bytes(ours.adopt(*key), torch.bfloat16).fill_(-number - 1)
    for number, (key, each) in enumerate(zip(PLAN.slices, LAYOUT.slices, strict=True)):
        captured = arrays.from_bytes(theirs.capture(*key), pb.F32)
        assert captured.tolist() == [number + 1] * each.element_count
        adopted = arrays.from_bytes(theirs.adopt(*key), pb.BF16)
        assert adopted.tolist() == [-number - 1] * each.element_count
    for count in (1, 2):  # counters belong to their slice
        ours.turn(1, 0)
        assert [theirs.counter(*key) for key in PLAN.slices] == [0, 0, count, 0]


def test_an_adopt_region_has_room_for_a_last_version_in_f32_and_says_what_is_in_it() -> None:
    ours, theirs = both_ends(PLAN)
    for number, (key, each) in enumerate(zip(PLAN.slices, LAYOUT.slices, strict=True)):
        assert theirs.adopt_encoding(*key) == pb.BF16
        for encoding in (pb.F32, pb.BF16, pb.F32):
            data = memoryview(bytes([number + 1]) * each.form.byte_count(encoding))
            ours.place(*key, encoding, data)
            assert theirs.adopt_encoding(*key) == encoding
            assert theirs.adopt(*key) == data
    for number, key in enumerate(PLAN.slices):
        assert set(theirs.adopt(*key)) == {number + 1}


def test_regions_begin_on_pages_and_there_is_none_that_nothing_needs() -> None:
    plan = shared_memory.memory_plan(LAYOUT, Sync(wire_down=Wire.F32))
    assert all(each % ALIGN_BYTES == 0 for each in (*plan.capture_offsets, *plan.adopt_offsets))
    assert plan.byte_count == plan.adopt_offsets[-1] + ALIGN_BYTES
    narrow = build_layout([replace(spec, dtype="bfloat16") for spec in LAYOUT.tensors], 2, 2)
    for layout, final in ((LAYOUT, pb.F32), (narrow, pb.BF16)):
        plan = shared_memory.memory_plan(layout, SYNC, observer=True)
        assert plan.final_encodings == (final,) * 4
        assert (plan.capture_offsets, len(plan.adopt_offsets)) == ((), 4)  # as of an observer


def test_a_view_keeps_its_tensor_alive() -> None:
    values = torch.randn(1000)
    expected, alive = values.tolist(), weakref.ref(values)
    assert len(parameters.byte_view(torch.empty(0))) == 0
    view = parameters.byte_view(values)
    del values
    gc.collect()
    assert alive() is not None
    assert list(struct.unpack("<1000f", view)) == expected
    del view
    gc.collect()
    assert alive() is None
