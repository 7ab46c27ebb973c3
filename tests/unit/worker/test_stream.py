"""The side channel's stream: who has left, who has ended and who is silent."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from atoll_worker.link.codec import LENGTH, LinkError
from atoll_worker.transport import side, stream
from atoll_worker.transport.side import SIDE
from atoll_worker.transport.stream import Patience, SideStream

SECONDS_MAX = 60.0
LONG = 1000.0
MESSAGE = side.Closed(shard=3)
HELLO = side.Hello(secret="s", first=1, stop=2, lanes=2)


def test_who_is_silent_for_longer_than_the_limit_is_lost() -> None:
    patience = Patience(120.0)
    assert patience.beat_seconds == side.BEAT_SECONDS
    assert not any(patience.beat() for _ in range(60))
    assert patience.beat()


def test_a_short_limit_has_short_beats_and_everything_that_comes_counts() -> None:
    patience = Patience(2.0)
    assert patience.beat_seconds == 0.5
    for _ in range(10):
        assert not any(patience.beat() for _ in range(4))
        patience.heard()


Two = Callable[[SideStream, SideStream], Awaitable[Any]]


def between(scenario: Two, silence_seconds: float = LONG) -> Any:
    """Run a scenario on both ends of a stream."""

    async def run() -> Any:
        ends: asyncio.Future[SideStream] = asyncio.get_running_loop().create_future()
        served = asyncio.Event()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.set_result(SideStream(reader, writer, silence_seconds))
            await served.wait()

        async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            mine = SideStream(reader, writer, silence_seconds)
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    return await scenario(mine, await ends)
            finally:
                for end in (mine, await ends):
                    await end.turn_away()
                served.set()

    return asyncio.run(run())


def heard(of: SideStream) -> tuple["asyncio.Task[str]", list[Any]]:
    messages: list[Any] = []
    return asyncio.create_task(of.run(messages.append)), messages


def test_messages_arrive_in_order_and_an_end_in_order_is_no_loss() -> None:
    async def scenario(mine: SideStream, other: SideStream) -> tuple[str, list[Any]]:
        ending, messages = heard(other)
        mine.send(MESSAGE)
        mine.send(side.Drop(order=1))
        await mine.leave(SECONDS_MAX)
        return await ending, messages

    how, messages = between(scenario)
    assert (how, messages) == ("", [MESSAGE, side.Drop(order=1)])


@pytest.mark.parametrize("said", [b"", SIDE.encode(MESSAGE)[:9]])
def test_a_stream_that_ends_without_a_word_is_a_loss(said: bytes) -> None:
    async def scenario(mine: SideStream, other: SideStream) -> str:
        ending, _ = heard(other)
        mine._writer.write(said)
        await mine._writer.drain()
        mine._writer.close()
        return await ending

    assert between(scenario) == "has ended"


def test_a_stream_that_is_broken_off_is_a_loss_for_the_other_end() -> None:
    async def scenario(mine: SideStream, other: SideStream) -> str:
        ending, _ = heard(other)
        mine.abort()
        return await ending

    assert between(scenario) == "has ended"


def test_what_is_no_message_is_a_loss_with_its_reason() -> None:
    async def scenario(mine: SideStream, other: SideStream) -> str:
        ending, _ = heard(other)
        mine._writer.write(b"\x02\x00\x00\x00{}")
        return await ending

    assert "has said what is no message" in between(scenario)


def test_an_end_that_stands_still_is_lost_although_its_stream_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(mine: SideStream, other: SideStream) -> str:
        del mine  # says nothing
        return await other.run(lambda message: None)

    said = between(scenario, silence_seconds=0.1)
    assert said == "has said nothing for 0.1 s: it is stopped, or its host is gone"


def test_two_ends_that_have_nothing_to_say_keep_each_other_alive() -> None:
    async def scenario(mine: SideStream, other: SideStream) -> list[str]:
        endings = heard(mine)[0], heard(other)[0]
        await asyncio.wait(endings, timeout=1.0)
        assert not any(ending.done() for ending in endings)
        await mine.leave(SECONDS_MAX)
        return [await ending for ending in endings]

    assert between(scenario, silence_seconds=0.4)[1] == ""


def test_the_first_message_must_be_a_hello() -> None:
    async def scenario(mine: SideStream, other: SideStream) -> side.Hello:
        mine.send(HELLO)
        mine.send(MESSAGE)
        found = await other.hello()
        ending, messages = heard(other)
        await mine.leave(SECONDS_MAX)
        await ending
        assert messages == [MESSAGE]  # what came with it is not lost
        return found

    assert between(scenario) == HELLO

    async def wrong(mine: SideStream, other: SideStream) -> None:
        mine.send(MESSAGE)
        with pytest.raises(LinkError, match="Closed came first"):
            await other.hello()

    between(wrong)

    async def nothing(mine: SideStream, other: SideStream) -> None:
        await mine.leave(SECONDS_MAX)
        with pytest.raises(LinkError):
            await other.hello()

    between(nothing)
    assert stream.BEATS_OF_SILENCE > 1


@pytest.mark.parametrize(
    "said",
    [
        {"secret": 5, "first": 1, "stop": 2, "lanes": 2},
        {"secret": "\ud800", "first": 1, "stop": 2, "lanes": 2},
        {"secret": "s", "first": "1", "stop": 2, "lanes": 2},
        {"secret": "s", "first": 1, "stop": 2.0, "lanes": 2},
        {"secret": "s", "first": 1, "stop": 2, "lanes": None},
        "[" * 4000,
    ],
)
def test_whatever_a_stranger_says_is_a_hello_or_an_error_of_its_own(said: Any) -> None:
    body = (said if isinstance(said, str) else json.dumps({"kind": "Hello", **said})).encode()

    async def scenario(mine: SideStream, other: SideStream) -> None:
        mine._writer.write(LENGTH.pack(len(body)) + body)
        with pytest.raises(LinkError):
            await other.hello()

    between(scenario)
