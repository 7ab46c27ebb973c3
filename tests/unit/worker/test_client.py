"""The streams to one shard: how they end, and that a Leave gets away."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.certificates import issue, make_authorities
from atoll_protos.channels import Folder
from atoll_protos.credentials import Fault, FaultKind, OutOfDateError
from atoll_protos.diagnosis import RefusedError
from atoll_protos.errors import SpecError
from atoll_protos.frames import Whole
from atoll_protos.identity import Identity, Owner, Role
from atoll_worker.transport import lanes, transport
from atoll_worker.transport.client import Dialler, ShardClient
from atoll_worker.transport.lanes import Outgoing
from unit.worker.test_transport import Rig

SECONDS_MAX = 60.0
SHARDS = 8


class Stream:
    """One call that stays open: it gives these messages and takes whatever is written."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [*messages]

    async def read(self) -> Any:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)

    async def write(self, message: Any) -> None:
        del message


class Listener:
    """Notes how the connection ended."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def connected(self, shard: int) -> None: ...

    def opened(self, shard: int, welcome: pb.Welcome) -> None: ...

    def message(self, shard: int, message: pb.ToLearner) -> None: ...

    def form(self, shard: int, head: pb.Transfer) -> None: ...

    def publish_started(self, shard: int, head: pb.Transfer) -> None: ...

    async def published(self, shard: int, whole: Whole) -> None: ...

    def disconnected(self, shard: int, reason: str) -> None:
        del shard
        self.reasons.append(reason)


def a_client(monkeypatch: pytest.MonkeyPatch, listener: Listener) -> ShardClient:
    """A client whose shard welcomes it and then says nothing."""
    welcome = pb.ToLearner(welcome=pb.Welcome(session=7, secret="s"))

    async def ready() -> None: ...

    @asynccontextmanager
    async def channel(*_: Any) -> Any:
        bulk = SimpleNamespace(channel_ready=ready, stream_stream=lambda _: lambda **__: Stream())
        yield bulk

    def stub(_: Any) -> Any:
        return SimpleNamespace(Session=lambda: Stream(welcome))

    monkeypatch.setattr("atoll_worker.transport.client.SyncerStub", stub)
    return ShardClient(0, "nowhere:1", listener, channel)  # type: ignore[arg-type]


def test_a_writer_of_transfers_that_dies_ends_its_session_with_its_reason_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = Listener()
    client = a_client(monkeypatch, listener)

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
            last = lanes.once(head, last)
            offer = head.offer
            heads.append((offer.HasField("data_state"), offer.data_state, offer.same_data_state))
        return heads

    said, same, none = (True, b"1", False), (False, b"", True), (False, b"", False)
    assert sent([b"1", b"1", None, b"1"]) == [said, same, none, same]
    assert sent([b"1", b"2", b"1"]) == [said, (True, b"2", False), said]
    assert sent([b"", b""]) == [(True, b"", False), same]
    seed = pb.Transfer(seed=pb.Seed(slice=1))
    assert lanes.once(seed, b"1") == b"1"
    assert seed == pb.Transfer(seed=pb.Seed(slice=1))


def test_a_shard_without_a_session_delays_no_leaving() -> None:
    async def scenario() -> None:
        client = ShardClient(0, "nowhere:1", Listener(), lambda *_: None)  # type: ignore[arg-type]
        await asyncio.wait_for(client.drained(60.0), SECONDS_MAX)

    asyncio.run(scenario())


def test_what_waits_is_waited_for_until_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    client = a_client(monkeypatch, Listener())

    async def scenario() -> None:
        client.send(pb.ToShard(leave=pb.Leave(reason="r")))
        leaving = asyncio.create_task(client.drained(60.0))
        await asyncio.wait([leaving], timeout=0.05)
        assert not leaving.done()
        assert (await client._outbox.take()).leave.reason == "r"
        assert not leaving.done()  # it is being written
        taker = asyncio.create_task(client._outbox.take())
        await asyncio.wait_for(leaving, SECONDS_MAX)
        taker.cancel()

    asyncio.run(scenario())


def test_all_shards_are_told_at_once_that_a_learner_leaves() -> None:
    """One limit for all: one after the other, 8 silent shards would outlast the time to stop."""
    barrier, limits, hung_up = asyncio.Barrier(SHARDS), [], []

    async def drained(seconds_max: float) -> None:
        limits.append(seconds_max)
        await barrier.wait()  # until all the others wait, too

    rig = Rig()
    silent: Any = SimpleNamespace(
        drained=drained, hang_up=lambda: hung_up.append(1), dial=lambda: None
    )
    rig.transport.clients = [silent] * SHARDS
    rig.transport.over.set()
    asyncio.run(asyncio.wait_for(rig.transport.run(), SECONDS_MAX))
    assert limits == [transport.LEAVE_SECONDS_MAX] * SHARDS
    assert len(hung_up) == SHARDS


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
    fault = Fault(kind=FaultKind.EXPIRED, field="tls.crt", problem="expired", remedy="wait")
    for error, reason in (
        (OutOfDateError(fault), "tls.crt: expired; wait"),
        (RefusedError("it serves plain text"), "nowhere:1: it serves plain text"),
    ):
        assert refused_with(error) == ([reason], [])


def test_an_outage_is_one_line_until_its_reason_changes() -> None:
    rig = Rig()
    with structlog.testing.capture_logs() as lines:
        for reason in ("a", "a", "b", "b", "a"):
            rig.transport.disconnected(0, reason)
        rig.transport.connected(0)
        rig.transport.disconnected(0, "a")
    said = [each["reason"] for each in lines if each["event"] == "disconnected"]
    assert said == ["a", "b", "a", "a"]


def test_the_words_of_a_fault_stay_while_the_same_is_wrong(tmp_path: Path) -> None:
    """They reach the job's status, which is not to be written again because a clock went on."""
    clock = [1_000_000_000.0]
    owner = Owner(namespace="n", job="j", uid="u")
    who = Identity(namespace="n", job="j", uid="u", region="r", role=Role.LEARNER)
    authorities = make_authorities(owner, clock[0])

    def put(life: float) -> None:
        found = issue(authorities, who, clock[0], life)
        for name, value in (
            ("tls.crt", found.certificate),
            ("tls.key", found.key),
            ("ca.crt", found.authority),
        ):
            (tmp_path / name).write_bytes(value)

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
