"""The head of a learner and its lane processes, which are played over real streams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.network.addresses import joined
from atoll_protos.network.channels import PLAIN_TEXT
from atoll_protos.transfer.frames import Whole
from atoll_worker.hosts import side
from atoll_worker.hosts.head import Head, head_digest
from atoll_worker.hosts.side import SideStream
from atoll_worker.link.messages import Adopt, Fail, Listening, Tick
from atoll_worker.rules.effects import Command, Dial, PlaceValue, SendMessage
from atoll_worker.transport import transport
from atoll_worker.transport.held_values import PreparedParts
from unit.worker.rig import KEY, Rig, full
from unit.worker.test_client import turns

SECONDS_MAX = 60.0
LONG = 1000.0
SECRET = "s"
LANES = 3
ADOPT = Adopt(shard=0, fragment=0, number=1, blend=0.0)
PUBLISH = pb.Transfer(
    publish=pb.Publish(version=pb.SliceVersion(slice=0, version=pb.Version(number=5)))
)
AWAY = "has turned this process away: it has another secret"
WELCOME = pb.Welcome(session=1, secret="of the session", lanes=LANES)


@dataclass
class Listener:
    """What the training process, the rules and the shard's client hear of the head."""

    commands: list[Any] = field(default_factory=list)
    wholes: list[Whole] = field(default_factory=list)
    lanes: asyncio.Queue[tuple[str, str]] = field(default_factory=asyncio.Queue)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def command(self, command: Any) -> None:
        self.commands.append(command)
        self.changed.set()


@dataclass
class Played:
    """One lane process: what it has heard."""

    stream: SideStream
    channel: grpc.aio.Channel
    port: int
    heard: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    ended: "asyncio.Task[str] | None" = None

    async def until(self, kind: type[Any]) -> Any:
        """The next message of a kind."""
        while not isinstance(message := await self.heard.get(), kind):
            pass
        return message

    async def end(self) -> str:
        assert self.ended is not None
        found = await self.ended
        await self.channel.close()
        return found

    async def leave(self) -> None:
        """As a process does that ends in order."""
        self.stream.send(left=pb.Left())
        self.stream._unsent.put_nowait(None)
        await self.end()

    def break_off(self) -> None:
        """As the kernel does for a process that is killed."""
        self.stream._call.cancel()


async def come(port: int, lane: int, secret: str = SECRET, lanes: int = LANES) -> Played:
    """A lane process with one lane connects."""
    channel = side.dial(joined("127.0.0.1", port), PLAIN_TEXT)
    played = Played(side.followed(channel, secret, LONG), channel, port)
    played.stream.send(hello=pb.LaneHello(first=lane, stop=lane + 1, lanes=lanes))
    played.ended = asyncio.create_task(played.stream.run(played.heard.put_nowait))
    return played


def rig_of_a_head() -> tuple[Rig, Head, "asyncio.Queue[Any]"]:
    """A transport whose learner has two lane processes, and what its training process is told."""
    rig = Rig(
        lanes=LANES, own_lanes=(0, 1), lane_processes=2, head="127.0.0.1:0", secret=SECRET,
        silence_seconds=LONG,
    )  # fmt: skip
    said: asyncio.Queue[Any] = asyncio.Queue()
    rig.transport.end.send = said.put_nowait  # type: ignore[method-assign, assignment]
    head = rig.transport.carrier
    assert isinstance(head, Head)
    head.come_seconds_max = LONG
    return rig, head, said


async def at_once(*_: object) -> None:
    """The client of a shard leaves, which takes no time."""


def made(listener: Listener, come_seconds_max: float = LONG) -> Head:
    """A head, whose training process, rules and client are the listener."""
    rig, head, _ = rig_of_a_head()
    head.come_seconds_max = come_seconds_max
    rig.transport.end.send = listener.command  # type: ignore[method-assign]
    patched: Any = head
    patched._arrived = lambda shard, whole: listener.wholes.append(whole)
    client: Any = rig.client
    client.refuse = lambda reason, remedy: listener.lanes.put_nowait((reason, remedy))
    client.hang_up = lambda reason: listener.lanes.put_nowait((reason, ""))
    nothing = dict.fromkeys(("place", "promote", "discard"), lambda *_: None)
    patched.values = SimpleNamespace(**nothing)
    return head


async def listening(head: Head, listener: Listener) -> int:
    await head.listen()
    said = listener.commands.pop()
    assert isinstance(said, Listening)
    listener.changed.clear()
    return said.port


@asynccontextmanager
async def head_alone(come_seconds_max: float = LONG) -> AsyncIterator[tuple[Head, Listener, int]]:
    """A head that listens, for so long as the test has; and its port."""
    listener = Listener()
    head = made(listener, come_seconds_max)
    async with asyncio.timeout(SECONDS_MAX):
        yield head, listener, await listening(head, listener)
        await head.leave()


@asynccontextmanager
async def together() -> AsyncIterator[tuple[Head, Listener, list[Played]]]:
    """A head and two lane processes."""
    played: list[Played] = []
    async with head_alone() as (head, listener, port):
        for lane in (1, 2):
            played.append(await come(port, lane))
            await head.changed.wait()
            head.changed.clear()
        await head.gathered()
        yield head, listener, played
    for each in played:
        await each.end()


def opened(head: Head) -> int:
    """A session is open; the head's number of it."""
    head.opened(0, WELCOME, asyncio.Queue())
    return head.sessions[0]


async def both_told(played: list[Played], message: Any) -> None:
    for each in played:
        assert await each.until(type(message)) == message


async def test_a_lane_process_that_never_comes_is_lost_and_named_rule_30() -> None:
    async with head_alone(come_seconds_max=0.2) as (head, _, port):
        one = await come(port, 1)
        await head.changed.wait()  # this one has come, however slow the machine is
        await head.gathered()
    await one.end()
    assert head.lost == "the lane process of lane 2 has not come within 0.2 s"


@pytest.mark.parametrize(
    ("lane", "changes", "reason"),
    [
        (1, {"secret": "another"}, "another secret"),
        (1, {"lanes": 4}, "of 4"),
        (0, {}, "it has lanes range(0, 1)"),  # the head's
        (3, {}, "it has lanes range(3, 4)"),
    ],
)
async def test_a_stranger_is_turned_away(lane: int, changes: dict[str, Any], reason: str) -> None:
    with structlog.testing.capture_logs() as lines:
        async with head_alone() as (head, _, port):
            stranger = await come(port, lane, **changes)
            assert await stranger.end() in ("has ended", AWAY)
            assert not head.processes
            right = [await come(port, lane) for lane in (1, 2)]
            await head.gathered()
            assert not head.lost
        for each in right:
            await each.end()
    assert reason in lines[0]["reason"]


async def test_who_comes_when_all_are_there_is_turned_away() -> None:
    async with together() as (_, _, played):
        late = await come(played[0].port, 2)
        assert await late.end() == "has ended"


async def test_an_offer_is_prepared_by_all_and_sent_with_number_and_head() -> None:
    async with together() as (head, _, played):
        whole = pb.Transfer(offer=pb.Offer(slice=1, capture=6))
        ticket: Any = head.prepare(pb.PREPARES_OFFER, 0, (1,), 6)
        waiting = asyncio.create_task(ticket.prepared())
        for each in played:
            wanted = await each.until(pb.Prepare)
            assert (wanted.what, [*wanted.fragments], wanted.capture) == (pb.PREPARES_OFFER, [1], 6)
            assert not waiting.done()
            each.stream.send(prepared=pb.Prepared(order=wanted.order, not_finite=("a",)))
        assert await waiting == PreparedParts(False, ("a",))
        ticket.numbered(1, 4, whole)
        named = await played[1].until(pb.Numbered)
        assert (named.order, named.number, named.head) == (ticket.order, 4, whole)
        ticket.drop()
        await both_told(played, pb.Drop(order=ticket.order))


@pytest.mark.parametrize("first", [0, 1])
async def test_a_capture_that_one_host_has_lost_is_lost_for_all_rule_33(first: int) -> None:
    async with together() as (head, _, played):
        ticket: Any = head.prepare(pb.PREPARES_OFFER, 0, (1,), 6)
        assert not ticket.answered(first, pb.Prepared(lost=True))
        assert not ticket.answered(first, pb.Prepared())  # it says so twice
        assert ticket.answered(1 - first, pb.Prepared())
        assert await ticket.prepared() == PreparedParts(True, ())
        assert len(played) == 2


async def test_what_is_prepared_is_forgotten_with_the_session() -> None:
    async with together() as (head, _, played):
        ticket: Any = head.prepare(pb.PREPARES_OFFER, 0, (1,), 6)
        other: Any = head.prepare(pb.PREPARES_OFFER, 1, (1,), 6)
        head.closed(0)
        assert not other.outcome.done()
        with pytest.raises(asyncio.CancelledError):
            await ticket.prepared()
        await both_told(played, pb.LanesClosed(shard=0))


async def test_an_answer_that_comes_while_its_session_ends_is_no_loss() -> None:
    """The lanes end first, and with them who waits; the end of the session is told after that."""
    async with together() as (head, listener, played):
        ticket: Any = head.prepare(pb.PREPARES_OFFER, 0, (1,), 6)
        waiting = asyncio.create_task(ticket.prepared())
        await asyncio.sleep(0)
        waiting.cancel()
        for each in played:
            each.stream.send(prepared=pb.Prepared(order=(await each.until(pb.Prepare)).order))
        head.place(0, 0, 1)
        head.command(ADOPT)
        for each in played:
            each.stream.send(placed=pb.Placed(order=(await each.until(pb.PlaceShare)).order))
        await listener.changed.wait()  # they are still heard
        assert not head.lost


def verified(opening: int, number: int, head: pb.Transfer = PUBLISH) -> pb.Verified:
    return pb.Verified(
        shard=0, opening=opening, fragment=0, number=number, digest=head_digest(head)
    )


async def test_a_version_that_all_hosts_have_is_told_to_the_lane_processes_first() -> None:
    async with together() as (head, listener, played):
        whole = Whole(PUBLISH, bytearray(b"own"), 3)
        before = opened(head)
        head.closed(0)
        now = opened(head)  # the shard was started again: its session has the same number
        await head._whole(0, whole)
        played[0].stream.send(verified=verified(now, 3))
        played[1].stream.send(verified=verified(before, 3))
        played[1].stream.send(lanes_lost=pb.LanesLost(shard=0, opening=before, reason="long over"))
        played[1].stream.send(verified=verified(now, 2))
        await both_told(played, pb.Forget(shard=0, fragment=0, number=2))
        assert not listener.wholes
        played[1].stream.send(verified=verified(now, 3))
        await both_told(played, pb.Keep(shard=0, fragment=0, number=3))
        assert listener.wholes == [whole]
        assert listener.lanes.empty()


async def test_a_transfer_that_a_newer_one_replaces_is_forgotten_everywhere() -> None:
    async with together() as (head, _, played):
        now = opened(head)
        await head._whole(0, Whole(PUBLISH, bytearray(), 3))
        played[0].stream.send(verified=verified(now, 4))
        await both_told(played, pb.Forget(shard=0, fragment=0, number=3))
        assert not head._wholes


async def test_lanes_that_are_lost_or_heads_that_differ_end_the_session_with_their_reason() -> None:
    async with together() as (head, listener, played):
        other = pb.Transfer(publish=pb.Publish(tick=7))
        now = opened(head)
        await head._whole(0, Whole(PUBLISH, bytearray(), 3))
        played[0].stream.send(verified=verified(now, 3, other))
        assert "transfer 3 has another head" in (await listener.lanes.get())[0]
        lost = pb.LanesLost(shard=0, opening=now, reason="UNAVAILABLE", remedy="renew it")
        played[1].stream.send(lanes_lost=lost)
        assert await listener.lanes.get() == ("lanes 2 .. 2: UNAVAILABLE", "renew it")


async def test_an_adopt_waits_until_every_host_has_placed_its_share_rule_31() -> None:
    async with together() as (head, listener, played):
        head.place(0, 0, 1)
        head.command(ADOPT)
        head.command(Tick(tick=1))
        head.promote(0, 0, 1)
        head.discard(0, 0, 2)
        for each in played:
            assert not listener.commands
            order = (await each.until(pb.PlaceShare)).order
            assert (await each.until(pb.PromoteShare)).version == 1
            assert (await each.until(pb.DiscardShare)).version == 2
            each.stream.send(placed=pb.Placed(order=order))
        await listener.changed.wait()
        assert listener.commands == [ADOPT, Tick(tick=1)]


async def test_a_lane_process_that_ends_is_lost_unless_it_has_left() -> None:
    async with together() as (head, _, played):
        await played[0].leave()
        assert not head.lost
        played[1].break_off()
        assert await head.failed() == "the lane process of lanes 2 .. 2 has ended"


async def test_a_loss_is_seen_though_grpc_cancels_the_call_while_its_stream_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = side.SideStream.run

    async def cancelled(stream: side.SideStream, on_message: Callable[[Any], None]) -> str:
        found = await run(stream, on_message)
        if stream._kind is pb.ToLaneProcess and found:
            raise asyncio.CancelledError
        return found

    monkeypatch.setattr(side.SideStream, "run", cancelled)
    async with together() as (head, _, played):
        await played[0].leave()
        assert not head.lost
        played[1].break_off()
        assert await head.failed() == "the lane process of lanes 2 .. 2 has ended"


async def test_the_lane_processes_hear_that_the_head_leaves_in_order() -> None:
    async with together() as (head, _, played):
        await head.leave()
        assert not head.lost
        assert [await each.end() for each in played] == ["", ""]


async def test_a_head_that_has_lost_a_lane_process_ends_the_others_alone_rule_30() -> None:
    """What waits for the lost one's share is never obeyed."""
    rig, head, said = rig_of_a_head()
    ended: list[str] = []
    client: Any = rig.client
    client.hang_up = ended.append
    client.dial = lambda: ended.append("dialled")
    client.send = lambda message: ended.append("said more")
    rig.transport.values.bases[KEY] = rig.transport.values.candidates[*KEY, 1] = full(1.0)
    async with asyncio.timeout(SECONDS_MAX):
        await head.listen()
        port = (await said.get()).port
        first = await come(port, 1)
        await head.changed.wait()
        second = await come(port, 2)
        await head.gathered()
        keeping = asyncio.create_task(rig.transport._keep_whole())
        rig.transport.feed([PlaceValue(*KEY, 1), Command(ADOPT)])
        order = (await second.until(pb.PlaceShare)).order
        second.stream.send(placed=pb.Placed(order=order))
        first.break_off()
        assert await second.end() == "has ended"
        fail = await said.get()
        rig.transport.feed([SendMessage(0, pb.ToShard()), Command(Tick(tick=1)), Dial(0)])
        rig.transport.disconnected(0, "hung up")
        keeping.cancel()
        await head.leave()
        await first.end()
    assert said.empty()
    assert isinstance(fail, Fail)
    assert fail.exit_code == ExitCode.TRY_AGAIN
    assert fail.reason.startswith("the lane process of lanes 1 .. 1 has ended; start all ranks")
    assert len(ended) == 1


async def test_a_head_that_has_lost_a_process_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait in vain for what the export needs: its learner is to start again."""
    monkeypatch.setattr(transport, "LEAVE_SECONDS_MAX", LONG)
    rig, head, _ = rig_of_a_head()
    head.lost = "a lane process has ended"
    rig.transport.over.set()
    client: Any = rig.client
    client.hang_up = lambda _: None
    client.leave = at_once
    async with asyncio.timeout(SECONDS_MAX):
        await rig.transport.run()


async def test_a_head_dials_nobody_before_its_lane_processes_are_there() -> None:
    rig, head, said = rig_of_a_head()
    dialled = asyncio.Event()
    client: Any = rig.client
    client.dial, client.leave = dialled.set, at_once
    async with asyncio.timeout(SECONDS_MAX):
        running = asyncio.create_task(rig.transport.run())
        port = (await said.get()).port
        first = await come(port, 2)
        while not head.processes:
            await turns()
        assert await (await come(port, 2)).end() == "has ended"  # a twin
        assert not dialled.is_set()
        second = await come(port, 1)
        await dialled.wait()
        rig.transport.over.set()
        await running
        assert [await first.end(), await second.end()] == ["", ""]
