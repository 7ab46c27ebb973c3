"""A shard's sessions and its Status: how many there may be, what they get, what an error does."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.duties.port import SessionPort
from atoll_syncer.duties.recording import LinkEnd
from atoll_syncer.edges import service as service_module
from unit.syncer.service_side import AbortedError, BulkContext, Context, running, serving
from unit.syncer.shard_side import begun


class BugError(Exception):
    """What the rules must not raise."""


@pytest.mark.parametrize("raising", ["session_opened", "message", "session_closed"])
async def test_an_exception_in_a_sessions_handler_ends_the_process(raising: str) -> None:
    failures: list[BaseException] = []

    def fail(*_: Any) -> list[Any]:
        raise BugError(raising)

    def rule(name: str) -> Any:
        return fail if name == raising else lambda *_: []

    names = ("session_opened", "message", "session_closed")
    service, _ = serving(**{name: rule(name) for name in names})
    driver: Any = service.driver
    driver.failed, driver.session_closed = failures.append, rule("session_closed")
    context = Context(pb.ToShard(join=pb.Join(slot="a-0")), pb.ToShard(report=pb.Report()))
    with nullcontext() if raising == "message" else pytest.raises(BugError):  # else of the reader
        await service.Session(None, context)
    assert [type(each) for each in failures] == [BugError]


@pytest.mark.parametrize("observer", [False, True])
async def test_a_join_beyond_the_limit_is_refused_and_no_open_session_ends(
    observer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_syncer.edges.service.SESSIONS_MAX", 9 if observer else 1)
    monkeypatch.setattr("atoll_syncer.edges.service.OBSERVERS_MAX", 1)
    opened = asyncio.Event()
    service, _ = serving(session_opened=lambda *_: opened.set())
    join = pb.ToShard(join=pb.Join(slot="a-0", observer=observer))
    for _ in range(2):
        opened.clear()
        async with running(service.Session(None, BulkContext("", "", join))) as first:
            await opened.wait()
            with pytest.raises(AbortedError) as refused:
                await service.Session(None, BulkContext("", "", join))
            assert refused.value.args[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not first.done()
    assert (service.open, service.observers) == (0, 0)


def test_of_unsent_ticks_only_the_newest_waits_rule_24() -> None:
    port = SessionPort("secret")
    port.send(pb.ToLearner(call=pb.Call(slice=1)))
    for tick in (1, 2, 3):
        port.send(pb.ToLearner(tick=pb.Tick(tick=tick)))
    kinds = [each.WhichOneof("kind") for each in port.control]
    assert kinds == ["call", "tick"]
    assert port.control[-1].tick.tick == 3


async def test_an_end_is_the_last_word_of_a_session_rule_5() -> None:
    port = SessionPort("secret")
    port.end(pb.End(code=pb.SUPERSEDED))
    port.send(pb.ToLearner(tick=pb.Tick(tick=1)))
    await serving()[0]._write(port, Context())  # ends
    assert [each.WhichOneof("kind") for each in port.control] == ["tick"]


@pytest.mark.parametrize("code", [pb.NOT_ALLOWED, pb.SUPERSEDED])
async def test_a_peer_that_does_not_read_its_end_keeps_no_stream(
    code: pb.Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window is full: neither the End nor what was sent before comes through."""
    limits = {"SHUT_OUT_SECONDS_MAX": 0.0, "END_SECONDS_MAX": 1_000.0}
    if code == pb.SUPERSEDED:
        limits = dict(zip(limits, reversed(limits.values()), strict=True))
    for name, seconds in limits.items():
        monkeypatch.setattr(f"atoll_syncer.edges.service.{name}", seconds)
    writing, opened = asyncio.Event(), asyncio.Event()

    class Unread(BulkContext):
        async def write(self, message: Any) -> None:
            del message
            writing.set()
            await asyncio.Event().wait()

    service, _ = serving(session_opened=lambda *_: opened.set())
    unread = Unread("", "", pb.ToShard(join=pb.Join(slot="a-0")))
    async with running(service.Session(None, unread)) as session:
        await opened.wait()
        port = service.driver.ports[1]
        port.send(pb.ToLearner(tick=pb.Tick(tick=1)))
        await writing.wait()
        port.end(pb.End(code=code))
        await asyncio.wait_for(session, 60.0)
    assert port.closed.is_set()


async def test_status_tells_the_operators_last_word_and_what_must_be_equal() -> None:
    one, _ = begun("a-0")
    service, _ = serving()
    driver: Any = service.driver
    driver.shard, driver.state, driver.now = one.shard, one.state, lambda: one.now
    driver.recording = SimpleNamespace(
        bytes_received=5, bytes_sent=16, links={LinkEnd(): (0, 9), LinkEnd("a", "house"): (5, 7)}
    )
    driver.checkpoints = SimpleNamespace(newest="")
    driver.background = SimpleNamespace(troubles=[])
    driver.machine.metrics = SimpleNamespace(refused_peer=None)
    assert (await service.Status(pb.StatusRequest(), None)).must_equal == one.job.must_equal
    for said, intent, why in (
        ({}, pb.INTENT_UNSPECIFIED, ""),
        ({"intent": pb.INTENT_FAIL, "why": "too late"}, pb.INTENT_FAIL, "too late"),
        ({}, pb.INTENT_FAIL, "too late"),
        ({"intent": pb.INTENT_RUN}, pb.INTENT_RUN, ""),
        ({}, pb.INTENT_RUN, ""),
    ):
        reply = await service.Status(pb.StatusRequest(**said), None)
        assert (reply.intent, reply.why) == (intent, why)
        assert (reply.bytes_received, reply.bytes_sent) == (5, 16)
        links = [
            pb.LinkBytes(sent=9),
            pb.LinkBytes(region="a", machine="house", received=5, sent=7),
        ]
        assert [*reply.links] == links


@pytest.mark.parametrize(("files", "most"), [(160, 80), (1 << 20, 1000 + 4 * 257)])
async def test_connections_of_a_shard_leave_half_of_its_open_files(
    files: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: dict[str, Any] = {}

    def options(**given: Any) -> list[Any]:
        limits.update(given)
        return []

    monkeypatch.setattr(service_module, "raise_file_limit", lambda: files)
    monkeypatch.setattr(service_module, "server_options", options)
    service_module.make_server(4)
    assert limits == {"connections": most}
