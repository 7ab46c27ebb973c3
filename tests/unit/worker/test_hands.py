"""The head's transport and its lane processes, which are played over real streams."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.frames import Whole
from atoll_protos.parts import Share
from atoll_worker.link.messages import Adopt, Fail, Listening, Tick
from atoll_worker.rules.effects import Command, Dial, Place, SendMessage
from atoll_worker.transport import side, transport
from atoll_worker.transport.coordination import Outcome
from atoll_worker.transport.hands import Hands, head_digest
from atoll_worker.transport.side import Hello, Kind
from atoll_worker.transport.stream import SideStream
from unit.worker.test_transport import KEY, Rig, full

SECONDS_MAX = 60.0
LONG = 1000.0
SECRET = "s"
LANES = 3
ADOPT = Adopt(shard=0, fragment=0, number=1, blend=0.0)
PUBLISH = pb.Transfer(
    publish=pb.Publish(version=pb.SliceVersion(slice=0, version=pb.Version(number=5)))
)


@dataclass
class Listener:
    """What the head's transport hears."""

    commands: list[Any] = field(default_factory=list)
    wholes: list[tuple[int, Whole]] = field(default_factory=list)
    lanes: asyncio.Queue[tuple[int, str, str]] = field(default_factory=asyncio.Queue)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def command(self, command: Any) -> None:
        self.commands.append(command)
        self.changed.set()

    def arrived(self, shard: int, whole: Whole) -> None:
        self.wholes.append((shard, whole))

    def lanes_lost(self, shard: int, reason: str, remedy: str) -> None:
        self.lanes.put_nowait((shard, reason, remedy))


@dataclass
class Played:
    """One lane process: what it has heard."""

    stream: SideStream
    heard: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    ended: "asyncio.Task[str] | None" = None

    async def until(self, kind: type[Any]) -> Any:
        """The next message of a kind."""
        while not isinstance(message := await self.heard.get(), kind):
            pass
        return message

    async def end(self) -> str:
        assert self.ended is not None
        return await self.ended


async def come(port: int, lane: int, secret: str = SECRET, lanes: int = LANES) -> Played:
    """A lane process with one lane connects."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    played = Played(SideStream(reader, writer, LONG))
    played.stream.send(Hello(secret=secret, first=lane, stop=lane + 1, lanes=lanes))
    played.ended = asyncio.create_task(played.stream.run(played.heard.put_nowait))
    return played


def made(listener: Any = None, come_seconds_max: float = LONG) -> Hands:
    return Hands(
        share=Share(0, 1, LANES),
        secret=SECRET,
        silence_seconds_max=LONG,
        come_seconds_max=come_seconds_max,
        listener=listener or Listener(),
    )


Scenario = Callable[[Hands, Listener, list[Played]], Awaitable[Any]]


def with_hands(scenario: Scenario) -> Any:
    """Run it with a head and two lane processes."""

    async def run() -> Any:
        listener = Listener()
        hands = made(listener)
        async with asyncio.timeout(SECONDS_MAX):
            port = await hands.listen("127.0.0.1")
            played = [await come(port, lane) for lane in (1, 2)]
            await hands.gathered()
            found = await scenario(hands, listener, played)
            await hands.leave()
            for each in played:
                await each.end()
            return found

    return asyncio.run(run())


def opened(hands: Hands) -> int:
    """A session is open; the head's number of it."""
    hands.opened(0, pb.Welcome(session=1, secret="of the session"))
    return hands.sessions[0]


async def both_told(played: list[Played], message: Any) -> None:
    for each in played:
        assert await each.until(type(message)) == message


# ------------------------------------------------------------ they come


def test_a_hand_that_never_comes_is_lost_and_named_rule_30() -> None:
    async def scenario() -> str:
        hands = made(come_seconds_max=0.2)
        async with asyncio.timeout(SECONDS_MAX):
            one = await come(await hands.listen("127.0.0.1"), 1)
            await hands.changed.wait()  # this one has come, however slow the machine is
            await hands.gathered()
            await hands.leave()
            await one.end()
        return hands.lost

    assert asyncio.run(scenario()) == "the lane process of lane 2 has not come within 0.2 s"


@pytest.mark.parametrize(
    ("lane", "changes", "reason"),
    [
        (1, {"secret": "another"}, "another secret"),
        (1, {"lanes": 4}, "of 4"),
        (0, {}, "it has lanes range(0, 1)"),  # the head's
        (3, {}, "it has lanes range(3, 4)"),
    ],
)
def test_who_does_not_belong_to_the_learner_is_turned_away(
    lane: int, changes: dict[str, Any], reason: str
) -> None:
    async def scenario() -> None:
        hands = made()
        async with asyncio.timeout(SECONDS_MAX):
            port = await hands.listen("127.0.0.1")
            stranger = await come(port, lane, **changes)
            assert await stranger.end() == "has ended"
            assert not hands.hands
            right = [await come(port, lane) for lane in (1, 2)]
            await hands.gathered()
            assert not hands.lost
            await hands.leave()
            for each in right:
                await each.end()

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    assert reason in lines[0]["reason"]


def test_nobody_can_connect_once_all_hands_are_there() -> None:
    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> bool:
        try:
            socket.create_connection(played[0].stream._writer.get_extra_info("peername")).close()
        except ConnectionRefusedError:
            return True
        return False

    assert with_hands(scenario)


# ------------------------------------------------------------ they work


def test_an_offer_is_prepared_by_all_and_sent_with_number_and_head() -> None:
    head = pb.Transfer(offer=pb.Offer(slice=1, capture=6))

    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> Outcome:
        ticket = hands.prepare(Kind.OFFER, 0, (1,), 6)
        waiting = asyncio.create_task(ticket.prepared())
        for each in played:
            wanted = await each.until(side.Prepare)
            assert (wanted.what, wanted.fragments, wanted.capture) == ("offer", (1,), 6)
            assert not waiting.done()
            each.stream.send(side.Prepared(order=wanted.order, not_finite=("a",)))
        outcome = await waiting
        ticket.numbered(1, 4, head)
        named = await played[1].until(side.Numbered)
        assert (named.order, named.number) == (ticket.order, 4)
        assert pb.Transfer.FromString(named.head) == head
        ticket.drop()
        await both_told(played, side.Drop(order=ticket.order))
        return outcome

    assert with_hands(scenario) == Outcome(False, ("a",))


def test_what_is_prepared_is_forgotten_with_the_session() -> None:
    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> None:
        ticket = hands.prepare(Kind.OFFER, 0, (1,), 6)
        hands.closed(0)
        with pytest.raises(asyncio.CancelledError):
            await ticket.prepared()
        await both_told(played, side.Closed(shard=0))

    with_hands(scenario)


def test_an_answer_that_comes_while_its_session_ends_is_no_loss() -> None:
    """The lanes end first, and with them who waits; the end of the session is told after that."""

    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> None:
        ticket = hands.prepare(Kind.OFFER, 0, (1,), 6)
        waiting = asyncio.create_task(ticket.prepared())
        await asyncio.sleep(0)
        waiting.cancel()
        for each in played:
            each.stream.send(side.Prepared(order=(await each.until(side.Prepare)).order))
        hands.place(0, 0, 1)
        hands.command(ADOPT)
        for each in played:
            each.stream.send(side.Placed(order=(await each.until(side.Place)).order))
        await listener.changed.wait()  # they are still heard
        assert not hands.lost

    with_hands(scenario)


def verified(opening: int, number: int, head: pb.Transfer = PUBLISH) -> side.Verified:
    return side.Verified(
        shard=0, opening=opening, fragment=0, number=number, digest=head_digest(head)
    )


def test_a_version_is_told_of_when_it_is_on_all_hosts_and_the_hands_hear_it_first() -> None:
    whole = Whole(PUBLISH, bytearray(b"own"), 3)

    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> None:
        before = opened(hands)
        hands.closed(0)
        now = opened(hands)  # the shard was started again: its session has the same number
        hands.verified(0, whole)
        played[0].stream.send(verified(now, 3))
        played[1].stream.send(verified(before, 3))
        played[1].stream.send(side.LanesLost(shard=0, opening=before, reason="long over"))
        played[1].stream.send(verified(now, 2))
        await both_told(played, side.Forget(shard=0, fragment=0, number=2))
        assert not listener.wholes
        played[1].stream.send(verified(now, 3))
        await both_told(played, side.Keep(shard=0, fragment=0, number=3))
        assert listener.wholes == [(0, whole)]
        assert listener.lanes.empty()

    with_hands(scenario)


def test_a_transfer_that_a_newer_one_replaces_is_forgotten_everywhere() -> None:
    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> None:
        now = opened(hands)
        hands.verified(0, Whole(PUBLISH, bytearray(), 3))
        played[0].stream.send(verified(now, 4))
        await both_told(played, side.Forget(shard=0, fragment=0, number=3))
        assert not hands._wholes

    with_hands(scenario)


def test_lanes_that_are_lost_or_heads_that_differ_end_the_session_with_their_reason() -> None:
    other = pb.Transfer(publish=pb.Publish(tick=7))

    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> list[Any]:
        now = opened(hands)
        hands.verified(0, Whole(PUBLISH, bytearray(), 3))
        played[0].stream.send(verified(now, 3, other))
        differ = await listener.lanes.get()
        lost = side.LanesLost(shard=0, opening=now, reason="UNAVAILABLE", remedy="renew it")
        played[1].stream.send(lost)
        return [differ, await listener.lanes.get()]

    differ, unavailable = with_hands(scenario)
    assert "transfer 3 has another head" in differ[1]
    assert unavailable == (0, "lanes 2 .. 2: UNAVAILABLE", "renew it")


def test_an_adopt_waits_until_every_host_has_placed_its_share_rule_31() -> None:
    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> list[Any]:
        hands.place(0, 0, 1)
        hands.command(ADOPT)
        hands.command(Tick(tick=1))
        hands.promote(0, 0, 1)
        hands.discard(0, 0, 2)
        for each in played:
            assert not listener.commands
            order = (await each.until(side.Place)).order
            assert (await each.until(side.Promote)).version == 1
            assert (await each.until(side.Discard)).version == 2
            each.stream.send(side.Placed(order=order))
        await listener.changed.wait()
        return listener.commands

    assert with_hands(scenario) == [ADOPT, Tick(tick=1)]


# ------------------------------------------------------------ they go


def test_a_hand_that_ends_is_lost_unless_it_has_left() -> None:
    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> str:
        await played[0].stream.leave(SECONDS_MAX)
        assert await played[0].end() in ("", "has ended")
        assert not hands.lost
        played[1].stream.abort()
        return await hands.failed()

    assert with_hands(scenario) == "the lane process of lanes 2 .. 2 has ended"


def test_the_hands_hear_that_the_head_leaves_in_order() -> None:
    async def scenario(hands: Hands, listener: Listener, played: list[Played]) -> list[str]:
        await hands.leave()
        assert not hands.lost
        return [await each.end() for each in played]

    assert with_hands(scenario) == ["", ""]


def test_a_head_that_has_lost_a_hand_ends_the_others_and_does_nothing_more_rule_30() -> None:
    """What waits for the lost one's share is never obeyed."""
    rig = Rig()
    hands = made(rig.transport)
    rig.transport.hands = rig.transport.sending.hands = hands
    said: asyncio.Queue[Any] = asyncio.Queue()
    ended: list[str] = []
    rig.transport.end.send = said.put_nowait  # type: ignore[method-assign, assignment]
    client: Any = rig.client
    client.hang_up = ended.append
    client.dial = lambda: ended.append("dialled")
    client.send = lambda message: ended.append("said more")
    rig.transport.values.bases[KEY] = rig.transport.values.candidates[*KEY, 1] = full(1.0)

    async def scenario() -> Any:
        async with asyncio.timeout(SECONDS_MAX):
            port = await hands.listen("127.0.0.1")
            first, second = [await come(port, lane) for lane in (1, 2)]
            await hands.gathered()
            keeping = asyncio.create_task(rig.transport._keep_hands())
            rig.transport.feed([Place(*KEY, 1), Command(ADOPT)])
            second.stream.send(side.Placed(order=(await second.until(side.Place)).order))
            first.stream.abort()
            assert await second.end() == "has ended"
            fail = await said.get()
            rig.transport.feed([SendMessage(0, pb.ToShard()), Command(Tick(tick=1)), Dial(0)])
            rig.transport.disconnected(0, "hung up")
            keeping.cancel()
            await hands.leave()
            await first.end()
            assert said.empty()
            return fail

    fail = asyncio.run(scenario())
    assert isinstance(fail, Fail)
    assert fail.exit_code == ExitCode.TRY_AGAIN
    assert fail.reason.startswith("the lane process of lanes 1 .. 1 has ended; start all ranks")
    assert len(ended) == 1


def test_a_head_that_has_lost_a_hand_ends_without_waiting_for_what_the_export_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would wait in vain: nothing is sent any more, and its learner is to start again."""
    monkeypatch.setattr(transport, "LEAVE_SECONDS_MAX", LONG)
    rig = Rig()
    rig.transport.hands = made(rig.transport)
    rig.transport.hands.lost = "a lane process has ended"
    rig.transport.over.set()
    client: Any = rig.client
    client.hang_up = lambda _: None

    async def leave(seconds: float) -> None: ...

    client.leave = leave
    asyncio.run(asyncio.wait_for(rig.transport.run(), SECONDS_MAX))


def test_a_head_dials_nobody_before_its_hands_are_there() -> None:
    rig = Rig()
    configure = rig.transport.end.configure
    object.__setattr__(configure, "hands", 2)
    object.__setattr__(configure, "head", "127.0.0.1:0")
    hands = made(rig.transport)
    rig.transport.hands = rig.transport.sending.hands = hands
    said: asyncio.Queue[Any] = asyncio.Queue()
    rig.transport.end.send = said.put_nowait  # type: ignore[method-assign, assignment]
    dialled = asyncio.Event()
    client: Any = rig.client
    client.dial = dialled.set

    async def leave(seconds: float) -> None: ...

    client.leave = leave

    async def scenario() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            running = asyncio.create_task(rig.transport.run())
            listening = await said.get()
            assert isinstance(listening, Listening)
            first = await come(listening.port, 2)
            assert await (await come(listening.port, 2)).end() == "has ended"  # a twin
            assert not dialled.is_set()
            second = await come(listening.port, 1)
            await dialled.wait()
            rig.transport.over.set()
            await running
            assert [await first.end(), await second.end()] == ["", ""]

    asyncio.run(scenario())
