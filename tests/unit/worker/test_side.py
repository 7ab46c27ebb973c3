"""The side channel: who has left, who has ended and who is silent, over a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.addresses import joined
from atoll_protos.network.channels import PLAIN_TEXT, Folder
from atoll_protos.network.identity import Role
from atoll_worker.hosts import side
from atoll_worker.hosts.side import Door, SideStream
from unit.worker.fake_transport import RUN_FILE
from unit.worker.rig import End
from wire.tls_side import Issuer, put

SECONDS_MAX = 60.0
LONG = 1000.0
SECRET = "s"
CLOSED = pb.LanesClosed(shard=3)


@pytest.mark.parametrize(("limit", "beat", "beats"), [(120.0, 2.0, 61), (2.0, 0.5, 5)])
async def test_silence_is_counted_in_the_own_beats_which_are_short_where_the_limit_is(
    monkeypatch: pytest.MonkeyPatch, limit: float, beat: float, beats: int
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) <= beats, "it waits for ever"

    monkeypatch.setattr(asyncio, "sleep", sleep)
    said = await SideStream(None, pb.ToHead, limit)._beat()
    assert said == f"has said nothing for {limit:g} s: it is stopped, or its host is gone"
    assert slept == [beat] * beats


def test_no_secret_is_in_what_may_be_logged() -> None:
    assert SECRET * 9 not in repr(replace(End(RUN_FILE).configure, secret=SECRET * 9))


@asynccontextmanager
async def between(
    silence_seconds: float = LONG,
    *,
    head: Folder = PLAIN_TEXT,
    dials: Folder = PLAIN_TEXT,
    secret: str = SECRET,
    ends_with_stream: bool = False,
) -> AsyncIterator[tuple[SideStream, Any]]:
    """Both ends of a stream; in place of the other end the reason, where it is refused."""
    reached: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def follow(context: Any) -> None:
        stream = SideStream(context, pb.ToLaneProcess, silence_seconds)
        reached.set_result(stream)
        await stream._over.wait() if ends_with_stream else await over.wait()

    door = Door(folder=head, secret=SECRET, follow=follow, refused=reached.set_result)
    async with asyncio.timeout(SECONDS_MAX):
        port = await door.open("127.0.0.1")
        async with side.dial(joined("127.0.0.1", port), dials) as channel:
            await channel.channel_ready()
            yield side.followed(channel, secret, silence_seconds), await reached
            over.set()
        await door.close(0)


def heard(of: SideStream) -> tuple["asyncio.Task[str]", list[Any]]:
    messages: list[Any] = []
    return asyncio.create_task(of.run(messages.append)), messages


async def test_messages_arrive_in_order_and_an_end_in_order_is_no_loss() -> None:
    async with between(ends_with_stream=True) as (mine, other):
        (ending, messages), (leaving, _) = heard(mine), heard(other)
        other.send(closed=CLOSED)
        other.send(drop=pb.Drop(order=1))
        await other.leave(SECONDS_MAX)
        await leaving
        assert (await ending, messages) == ("", [CLOSED, pb.Drop(order=1)])


async def leaving(mine: SideStream, other: SideStream) -> str:
    """How the other end has seen it."""
    (ending, _), (mine_ends, _) = heard(other), heard(mine)
    mine.send(left=pb.Left())
    mine._unsent.put_nowait(None)
    found = await ending
    mine.abort()
    await mine_ends
    return found


async def test_a_stream_that_is_broken_off_is_a_loss_and_one_that_is_left_is_none() -> None:
    async with between() as (mine, other):
        assert await leaving(mine, other) == ""
    async with between() as (mine, other):
        ending, _ = heard(other)
        mine._call.cancel()
        assert await ending == "has ended"


async def test_an_end_that_stands_still_is_lost_although_its_stream_is_open() -> None:
    async with between(silence_seconds=0.1) as (_, other):
        said = await other.run(lambda message: None)
    assert said == "has said nothing for 0.1 s: it is stopped, or its host is gone"


async def test_two_ends_that_have_nothing_to_say_keep_each_other_alive() -> None:
    async with between(silence_seconds=0.8) as (mine, other):
        endings = heard(mine)[0], heard(other)[0]
        await asyncio.wait(endings, timeout=1.0)
        assert not any(ending.done() for ending in endings)
        mine.abort()
        other.abort()
        await asyncio.gather(*endings)


async def read_error(stream: SideStream) -> grpc.StatusCode:
    """With what its next message is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream._call.read()
    return refused.value.code()


async def test_who_does_not_know_the_secret_is_turned_away() -> None:
    async with between(secret="another") as (mine, reason):
        assert await read_error(mine) == grpc.StatusCode.PERMISSION_DENIED
    assert reason == "it has another secret"


async def never(*_: Any) -> Any:
    raise AssertionError("it was let in")


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def folder(path: Path, issuer: Issuer, machine: str = "") -> Folder:
    return Folder(path=str(put(path, issuer.leaf(machine=machine))))


@pytest.mark.parametrize("machines", [("", ""), ("ws-3", "ws-4")])
async def test_learners_of_one_region_know_each_other_rule_37(
    machines: tuple[str, str], tmp_path: Path, issuer: Issuer
) -> None:
    """Also with certificates of single machines: the hosts of a learner are several."""
    own, other = (folder(tmp_path / f"{n}", issuer, each) for n, each in enumerate(machines))
    async with between(head=own, dials=other) as (mine, theirs):
        assert await leaving(mine, theirs) == ""


@pytest.mark.parametrize(
    ("role", "region", "reason"),
    [(Role.LEARNER, "elsewhere", "region"), (Role.EVALUATOR, "here", "role")],
)
async def test_a_head_lets_nobody_in_but_learners_of_its_region_rule_37(
    tmp_path: Path, issuer: Issuer, role: Role, region: str, reason: str
) -> None:
    """Such a process would not dial it: the name of the server is that of the region."""
    context: Any = Called(issuer.leaf(role, region).identity.uri)
    door = Door(folder=folder(tmp_path / "one", issuer), secret=SECRET, follow=never, refused=print)
    await door.open("127.0.0.1")
    assert reason in door.objection(context)
    await door.close(0)
    assert door.needed is not None
    context.uri = "spiffe://atoll.dev/somebody"
    assert "does not name a process" in door.objection(context)


async def test_plain_text_does_not_reach_a_head_with_certificates(
    tmp_path: Path, issuer: Issuer
) -> None:
    door = Door(folder=folder(tmp_path / "one", issuer), secret=SECRET, follow=never, refused=print)
    async with asyncio.timeout(SECONDS_MAX):
        port = await door.open("127.0.0.1")
        async with side.dial(joined("127.0.0.1", port), PLAIN_TEXT) as channel:
            stream = side.followed(channel, SECRET, LONG)
            assert await read_error(stream) == grpc.StatusCode.UNAVAILABLE
        await door.close(0)


class Called:
    """gRPC's context of a call whose peer has shown this identity."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def invocation_metadata(self) -> Any:
        return (("atoll-secret", SECRET),)

    def auth_context(self) -> Any:
        return {side.PEER_URI: [self.uri.encode()]}
