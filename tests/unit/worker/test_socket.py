import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from atoll_protos.job.layout import build_layout
from atoll_worker.link import shared_memory
from atoll_worker.link import socket as links
from atoll_worker.link.messages import Fail, Leaving, Proceed, Tick
from atoll_worker.link.socket import Link, LinkError, TransportEnd
from unit.worker.fixtures import CONFIGURE, TENSORS


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
