"""The streams to one shard: how they end, and that a Leave gets away."""

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import issue, make_authorities
from atoll_protos.bounds import TEXT_LETTERS_MAX
from atoll_protos.errors import SpecError
from atoll_protos.network.channels import (
    Folder,
    Options,
    RefusedError,
    bulk_options,
    control_options,
)
from atoll_protos.network.credentials import Identity, JobIdentity, OutOfDateError, Role
from atoll_worker.transport import transport
from atoll_worker.transport.control_stream import (
    Bulk,
    Dialler,
    Outbox,
    Outgoing,
    ShardClient,
    once,
)
from unit.worker.fake_ends import Rig

SECONDS_MAX = 60.0
SHARDS = 8
TURNS = 20  # of the event loop, in which whatever can be done is done


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Stream:
    """One call that stays open: it gives these messages and takes whatever is written.

    A call that is cancelled ends, as gRPC's do; `said` is what came of all calls, in order.
    """

    def __init__(self, *messages: Any, name: str = "", said: list[str] | None = None) -> None:
        self.messages = [*messages]
        self.name, self.said = name, [] if said is None else said
        self.answer = asyncio.Event()  # of the shard, to the end of what it is sent
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def read(self) -> Any:
        if not self.messages:
            try:
                await self.answer.wait()
            except asyncio.CancelledError:
                self.said.append(f"{self.name} ends")
                raise
            return grpc.aio.EOF
        return self.messages.pop(0)

    async def write(self, message: Any) -> None:
        await self.may_write.wait()
        self.said.append(message.WhichOneof("kind"))

    async def done_writing(self) -> None:
        self.said.append(f"{self.name} is half closed")


class Listener:
    """Notes how the connection ended."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.open_channel: Any = None

    def connected(self, shard: int) -> None: ...

    def opened(self, shard: int, welcome: pb.Welcome, payloads: Any) -> Bulk:
        assert self.open_channel is not None
        return Bulk(
            endpoint="nowhere:1",
            open_channel=self.open_channel,
            session=welcome.session,
            secret=welcome.secret,
            payloads=payloads,
            admit=lambda head: None,
            whole=lambda whole: asyncio.sleep(0),
        )

    def message(self, shard: int, message: pb.ToLearner) -> None: ...

    def disconnected(self, shard: int, reason: str) -> None:
        del shard
        self.reasons.append(reason)


@dataclass(slots=True, kw_only=True)
class Session:
    """A client's one session, by its calls."""

    client: ShardClient
    control: Stream
    said: list[str]
    opened: list[Stream]  # Bulk streams

    async def begin(self) -> "asyncio.Task[None]":
        """Dial; returns when its Bulk stream is there, or it waits for its Welcome."""
        self.client.dial()
        await turns()
        assert self.client._task is not None
        return self.client._task


def a_session(
    monkeypatch: pytest.MonkeyPatch, listener: Listener, *, welcomed: bool = True
) -> Session:
    """A client whose shard welcomes it, or does not, and then says nothing."""
    welcome = pb.ToLearner(welcome=pb.Welcome(session=7, secret="s"))
    said, opened = list[str](), list[Stream]()
    control = Stream(*[welcome] * welcomed, name="control", said=said)

    def bulk(**_: Any) -> Stream:
        opened.append(Stream(name="bulk", said=said))
        return opened[-1]

    async def ready() -> None: ...

    @asynccontextmanager
    async def channel(*_: Any) -> Any:
        yield SimpleNamespace(channel_ready=ready, stream_stream=lambda _: bulk)

    def calls(*_: Any) -> Any:
        return SimpleNamespace(Session=lambda: control)

    monkeypatch.setattr("atoll_worker.transport.control_stream.SyncerStub", calls)
    listener.open_channel = channel
    client = ShardClient(0, "nowhere:1", listener, channel)  # type: ignore[arg-type]
    return Session(client=client, control=control, said=said, opened=opened)


def test_a_writer_of_transfers_that_dies_ends_its_session_with_its_reason_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = Listener()
    client = a_session(monkeypatch, listener).client

    async def broken() -> Outgoing | None:
        raise BufferError("no memory for an offer")

    async def scenario() -> None:
        client.dial()
        client.send_bulk(broken)
        assert client._task is not None
        with pytest.raises(BufferError):
            await asyncio.wait_for(client._task, SECONDS_MAX)

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    (reason,) = listener.reasons
    assert "no memory for an offer" in reason
    assert [line["event"] for line in lines] == ["stream failed"]


def test_a_session_carries_a_data_state_once_and_another_session_again_rule_28() -> None:
    def sent(states: list[bytes | None]) -> list[tuple[bool, bytes, bool]]:
        heads, last = [], None
        for each in states:
            head = pb.Transfer(offer=pb.Offer(data_state=each))
            last = once(head, last)
            offer = head.offer
            heads.append((offer.HasField("data_state"), offer.data_state, offer.same_data_state))
        return heads

    said, same, none = (True, b"1", False), (False, b"", True), (False, b"", False)
    assert sent([b"1", b"1", None, b"1"]) == [said, same, none, same]
    assert sent([b"1", b"2", b"1"]) == [said, (True, b"2", False), said]
    assert sent([b"", b""]) == [(True, b"", False), same]
    seed = pb.Transfer(seed=pb.Seed(slice=1))
    assert once(seed, b"1") == b"1"
    assert seed == pb.Transfer(seed=pb.Seed(slice=1))


async def test_what_was_sent_has_been_read_before_a_bulk_stream_ends_rule_24(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shard reads no Leave once it has seen the end of a Bulk stream."""
    listener = Listener()

    session = a_session(monkeypatch, listener)
    dialled = await session.begin()
    assert session.opened
    session.control.may_write.clear()
    session.client.send(pb.ToShard(leave=pb.Leave(reason="r")))
    leaving = asyncio.create_task(session.client.leave(SECONDS_MAX))
    await turns()
    assert session.said == []
    session.control.may_write.set()
    await turns()
    assert session.said == ["leave", "control is half closed"]
    assert not leaving.done()
    session.control.answer.set()
    await asyncio.wait([leaving, dialled], timeout=SECONDS_MAX)
    assert session.said == ["leave", "control is half closed", "bulk ends"]
    assert listener.reasons == ["the shard closed the session"]


async def test_a_shard_that_answers_nothing_is_left_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = Listener()

    session = a_session(monkeypatch, listener)
    dialled = await session.begin()
    await session.client.leave(0.0)
    await asyncio.wait([dialled], timeout=SECONDS_MAX)
    assert sorted(session.said) == ["bulk ends", "control ends", "control is half closed"]
    assert listener.reasons == ["hung up"]


@pytest.mark.parametrize("dialled", [False, True])
async def test_a_shard_without_a_session_delays_no_leaving(
    dialled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = a_session(monkeypatch, Listener(), welcomed=False)
    if dialled:
        await session.begin()
        session.client.send(pb.ToShard(join=pb.Join()))
    leaving = asyncio.create_task(session.client.leave(SECONDS_MAX))
    await turns()
    assert leaving.done()
    assert session.client._task is None


async def test_streams_that_are_being_closed_are_closed_to_the_end_whoever_else_hangs_up() -> None:
    listener, closed = Listener(), list[bool]()
    may_close = asyncio.Event()

    @asynccontextmanager
    async def channel(*_: Any) -> Any:
        try:
            yield SimpleNamespace(channel_ready=asyncio.Event().wait)
        finally:
            await may_close.wait()
            closed.append(True)

    client = ShardClient(0, "nowhere:1", listener, channel)  # type: ignore[arg-type]
    client.dial()
    dialled = client._task
    assert dialled is not None
    await turns()
    client.hang_up("the first reason")
    await turns()
    client.hang_up("another one")
    await turns()
    may_close.set()
    await asyncio.wait_for(dialled, SECONDS_MAX)
    assert closed == [True]
    assert listener.reasons == ["the first reason"]


async def test_an_address_without_an_answer_soon_fails_and_in_later_dials_it_has_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address of a node that is gone, or of a process that stands, holds up the other one."""
    given: list[float] = []
    attempts: list[int] = []
    timeout, answers = asyncio.timeout, iter([False, False, False, False, True, False])

    def at_once(seconds: float) -> asyncio.Timeout:
        given.append(seconds)
        return timeout(0.0)

    async def ready(endpoint: str, channel: Any) -> None:
        if not next(answers):
            await asyncio.Event().wait()

    @asynccontextmanager
    async def channel(_: str, options: Options) -> Any:
        attempts.append(dict(options)["grpc.min_reconnect_backoff_ms"])
        assert attempts[-1] == 2 * dict(options)["grpc.max_reconnect_backoff_ms"]
        yield SimpleNamespace(stream_stream=None)  # whoever opens a stream on it fails

    client = ShardClient(0, "nowhere:1", Listener(), channel, ready)  # type: ignore[arg-type]
    monkeypatch.setattr(asyncio, "timeout", at_once)
    for _ in range(6):
        client.dial()
        assert client._task is not None
        await asyncio.wait([client._task])
    assert attempts == [1000, 2000, 4000, 8000, 10_000, 1000]
    assert given == [4.0, 8.0, 10.0, 10.0, 10.0, 4.0]


async def test_a_look_at_why_a_dial_fails_does_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody may answer the look, while another process of the shard begins to listen."""
    looks = asyncio.Event()

    async def look(*_: object) -> None:
        looks.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("atoll_protos.network.channels.probe", look)
    failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
    channel: Any = SimpleNamespace(get_state=lambda: failed, channel_ready=looks.wait)
    await asyncio.wait_for(Dialler(Folder(path="")).ready("nowhere:1", channel), SECONDS_MAX)


async def test_bytes_of_a_value_are_a_word_of_its_shard_rule_44() -> None:
    """On a slow link a long value may hold up the ticks beside it."""
    rig, comes = Rig(), Stream(b"frame")
    comes.answer.set()
    rig.transport.carrier.now = lambda: 5.0
    bulk = rig.transport.opened(0, pb.Welcome(), asyncio.Queue())
    gathering: Any = SimpleNamespace(feed=lambda *_: None, turn=lambda _: asyncio.sleep(0))
    await bulk._read(gathering, 0, comes)
    assert rig.transport.exchange.state.shards[0].heard_at == 5.0


def test_all_shards_are_told_at_once_that_a_learner_leaves() -> None:
    """One limit for all: one after the other, 8 silent shards would outlast the time to stop."""
    barrier, limits = asyncio.Barrier(SHARDS), []

    async def leave(seconds_max: float) -> None:
        limits.append(seconds_max)
        await barrier.wait()  # until all the others wait, too

    rig = Rig()
    silent: Any = SimpleNamespace(leave=leave, dial=lambda: None)
    rig.transport.clients = [silent] * SHARDS
    rig.transport.over.set()
    asyncio.run(asyncio.wait_for(rig.transport.run(), SECONDS_MAX))
    assert limits == [transport.LEAVE_SECONDS_MAX] * SHARDS


# ------------------------------------------------------------ credentials


def refused_with(error: Exception) -> tuple[list[str], list[pb.End]]:
    """What the driver hears of a dial whose credentials cannot be used."""
    listener: Any = Listener()
    ends: list[pb.End] = []
    listener.message = lambda _, message: ends.append(message.end)

    def refusing(*_: Any) -> Any:
        raise error

    async def scenario() -> None:
        one = ShardClient(0, "nowhere:1", listener, refusing)
        one.dial()
        assert one._task is not None
        await one._task

    asyncio.run(scenario())
    return listener.reasons, ends


def test_credentials_that_stay_wrong_end_the_learner_as_a_refusal_of_the_shard_would() -> None:
    (reason,), (end,) = refused_with(SpecError("/tls/tls.key", "is missing", "put it there"))
    assert reason == "/tls/tls.key: is missing; put it there"
    assert (end.code, end.retry) == (pb.NOT_ALLOWED, False)
    assert (end.reason, end.remedy) == ("/tls/tls.key: is missing", "put it there")


def test_what_a_renewal_heals_is_a_reason_to_dial_again() -> None:
    for error, reason in (
        (OutOfDateError("tls.crt: expired; wait"), "tls.crt: expired; wait"),
        (RefusedError("it serves plain text"), "nowhere:1: it serves plain text"),
    ):
        assert refused_with(error) == ([reason], [])


def test_the_words_of_a_shard_that_ends_a_session_are_the_reason_in_the_log_if_they_can_be_true(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule 38: nothing is kept of an End that is longer than any shard's."""
    rig, words = Rig(), "b-0 is shut out"
    one = a_session(monkeypatch, rig.transport, welcomed=False)  # type: ignore[arg-type]
    rig.transport.clients = [one.client]

    async def ends(*reasons: str) -> None:
        for reason in reasons:
            end = pb.End(code=pb.UNKNOWN_SLOT, reason=reason, retry=True)
            one.control.messages.append(pb.ToLearner(end=end))
        one.control.answer = asyncio.Event()
        one.client.dial()
        dialled = one.client._task
        assert dialled is not None
        one.control.answer.set()
        await asyncio.wait([dialled], timeout=SECONDS_MAX)

    with structlog.testing.capture_logs() as lines:
        asyncio.run(ends(words))
        asyncio.run(ends())
        asyncio.run(ends((TEXT_LETTERS_MAX + 1) * "x"))
    seen = [line["reason"] for line in lines if line["event"] == "disconnected"]
    assert seen[:2] == [words, "the shard closed the session"]
    assert seen[2].startswith("letters of a text"), seen[2][:99]


def test_an_outage_is_one_line_until_its_reason_changes() -> None:
    rig = Rig()
    with structlog.testing.capture_logs() as lines:
        for reason in ("a", "a", "b", "b", "a"):
            rig.transport.connected(0)  # a shard may refuse each session
            rig.transport.disconnected(0, reason)
        rig.transport.opened(0, pb.Welcome(), asyncio.Queue())
        rig.transport.disconnected(0, "a")
    said = [each["reason"] for each in lines if each["event"] == "disconnected"]
    assert said == ["a", "b", "a", "a"]


def issuing(folder: Path, clock: Callable[[], float]) -> Callable[[float], None]:
    """A function that puts credentials of a learner there, which are valid for so many seconds."""
    authorities = make_authorities(JobIdentity(namespace="n", job="j", uid="u"), clock())
    who = Identity(namespace="n", job="j", uid="u", region="r", role=Role.LEARNER)

    def put(seconds: float) -> None:
        found = issue(authorities, who, clock(), seconds)
        (folder / "tls.crt").write_bytes(found.certificate)
        (folder / "tls.key").write_bytes(found.key)
        (folder / "ca.crt").write_bytes(found.authority)

    return put


def test_the_words_of_a_fault_stay_while_the_same_is_wrong(tmp_path: Path) -> None:
    """They reach the job's status, which is not to be written again because a clock went on."""
    clock = [1_000_000_000.0]
    put = issuing(tmp_path, lambda: clock[0])
    put(60.0)
    dialler = Dialler(Folder(path=str(tmp_path), clock=lambda: clock[0]))
    assert dialler.trouble() == ""
    clock[0] += 61.0
    first = dialler.trouble()
    assert "tls.crt: expired at 2001-09-09 01:47:40 UTC" in first
    assert first.endswith("until then it keeps the connections it has")
    clock[0] += 61.0
    assert dialler.trouble() == first
    (tmp_path / "ca.crt").unlink()
    assert "ca.crt: is missing" in dialler.trouble()
    put(60.0)
    assert dialler.trouble() == ""
    assert Dialler(Folder(path="")).trouble() == ""


async def test_a_session_that_began_with_other_credentials_is_to_be_dialled_again(
    tmp_path: Path,
) -> None:
    put = issuing(tmp_path, time.time)
    put(3600.0)
    dialler = Dialler(Folder(path=str(tmp_path)))
    async with dialler.open("127.0.0.1:1", control_options()):
        assert dialler.outlived() == frozenset()
        put(7200.0)
        assert dialler.outlived() == {"127.0.0.1:1"}
        async with dialler.open("127.0.0.1:1", bulk_options()):  # of the same session
            assert dialler.outlived() == {"127.0.0.1:1"}
        put(-1800.0)
        assert dialler.outlived() == frozenset()  # no dial would succeed
        put(7200.0)
        async with dialler.open("127.0.0.1:1", control_options()):
            assert dialler.outlived() == frozenset()


async def test_what_was_queued_for_a_session_that_died_does_not_go_out_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its credit died with the session: the shard would end the next one for it."""
    asked: list[str] = []

    async def queued() -> Outgoing | None:
        asked.append("offer")
        return None

    session = a_session(monkeypatch, Listener(), welcomed=False)
    first = await session.begin()
    session.client.send_bulk(queued)
    session.client.send(pb.ToShard(leave=pb.Leave()))
    session.client.hang_up()
    await asyncio.wait([first])
    session.said.clear()
    session.control.messages.append(pb.ToLearner(welcome=pb.Welcome(session=8, secret="s")))
    second = await session.begin()
    assert session.opened
    await turns()
    session.client.hang_up()
    await asyncio.wait([second])
    assert "leave" not in session.said
    assert asked == []


async def test_of_two_reports_that_wait_the_newest_goes_out_rule_7() -> None:
    outbox = Outbox()
    for t_m in (1, 2):
        outbox.put(pb.ToShard(report=pb.Report(t_m=t_m)))
    outbox.close()
    taken = await outbox.take()
    assert taken is not None
    assert taken.report.t_m == 2
    assert await outbox.take() is None


async def test_no_lane_is_opened_for_a_welcome_that_cannot_be_true_rule_38(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 2^31 lanes none may be begun, nor memory be taken for them."""

    class Refusing(Listener):
        def message(self, shard: int, message: pb.ToLearner) -> None:
            del shard, message
            session.client.hang_up("lanes 2147483648 is above 256")

    listener = Refusing()
    session = a_session(monkeypatch, listener)

    session.client.dial()
    assert session.client._task is not None
    await asyncio.wait([session.client._task], timeout=SECONDS_MAX)
    assert session.opened == []
    assert listener.reasons == ["lanes 2147483648 is above 256"]
