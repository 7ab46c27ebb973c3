"""A shard's sessions and its Status: how many there may be, what they get, what an error does."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.run import first_difference, hash_of
from atoll_syncer.port import SessionPort
from atoll_syncer.service import SyncerService
from unit.syncer.service_side import AbortedError, BulkContext, Context, serving
from unit.syncer.shard_side import Side, begun


class BugError(Exception):
    """What the rules must not raise."""


def rules(raising: str) -> SimpleNamespace:
    """A shard whose input of this name raises."""

    def answer(*_: Any) -> list[Any]:
        return []

    def fail(*_: Any) -> list[Any]:
        raise BugError(raising)

    names = ("session_opened", "message", "session_closed")
    return SimpleNamespace(**{name: fail if name == raising else answer for name in names})


@pytest.mark.parametrize("raising", ["session_opened", "message", "session_closed"])
def test_an_exception_in_a_sessions_handler_ends_the_process(raising: str) -> None:
    failures: list[BaseException] = []
    shard = rules(raising)
    driver: Any = SimpleNamespace(
        ports={},
        machine=SimpleNamespace(new_secret=str),
        shard=shard,
        now=lambda: 0.0,
        feed=list,
        failed=failures.append,
        session_closed=shard.session_closed,
    )
    context = Context(pb.ToShard(join=pb.Join(slot="a-0")), pb.ToShard(report=pb.Report()))

    async def scenario() -> None:
        await SyncerService(driver).Session(None, context)

    if raising == "message":  # in the task that reads
        asyncio.run(scenario())
    else:
        with pytest.raises(BugError):
            asyncio.run(scenario())
    assert [type(each) for each in failures] == [BugError]


def test_a_welcome_carries_the_secret_of_its_session() -> None:
    port = SessionPort("secret of 7")
    port.send(pb.ToLearner(welcome=pb.Welcome(session=7)))
    assert port.control[0].welcome.secret == "secret of 7"


@pytest.mark.parametrize("kind", ["session", "observer"])
def test_a_join_beyond_the_limit_is_refused_and_no_open_session_ends(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_syncer.service.SESSIONS_MAX", 1 if kind == "session" else 9)
    monkeypatch.setattr("atoll_syncer.service.OBSERVERS_MAX", 1)
    observes = kind == "observer"
    opened = asyncio.Event()

    def session_opened(*_: Any) -> None:
        opened.set()

    service, _ = serving(session_opened=session_opened)
    driver: Any = service.driver
    driver.machine = SimpleNamespace(new_secret=str)
    driver.session_closed = lambda session: None
    join = pb.ToShard(join=pb.Join(slot="a-0", observer=observes))

    async def scenario() -> None:
        first = asyncio.create_task(service.Session(None, BulkContext("", "", join)))
        await opened.wait()
        with pytest.raises(AbortedError) as refused:
            await service.Session(None, BulkContext("", "", join))
        assert refused.value.args[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not first.done()
        first.cancel()
        await asyncio.wait([first])
        opened.clear()
        again = asyncio.create_task(service.Session(None, BulkContext("", "", join)))
        await opened.wait()
        again.cancel()
        await asyncio.wait([again])

    asyncio.run(scenario())
    assert (service.open, service.observers) == (0, 0)


def test_of_unsent_ticks_only_the_newest_waits_rule_24() -> None:
    port = SessionPort("secret")
    port.send(pb.ToLearner(call=pb.Call(slice=1)))
    for tick in (1, 2, 3):
        port.send(pb.ToLearner(tick=pb.Tick(tick=tick)))
    kinds = [each.WhichOneof("kind") for each in port.control]
    assert kinds == ["call", "tick"]
    assert port.control[-1].tick.tick == 3


async def ended_in_time(port: SessionPort) -> None:
    service = SyncerService(SimpleNamespace())  # type: ignore[arg-type]
    await asyncio.wait_for(service._write(port, Context()), 60.0)


def test_an_end_is_the_last_word_of_a_session_rule_5() -> None:
    port = SessionPort("secret")
    port.end(pb.End(code=pb.SUPERSEDED))
    port.send(pb.ToLearner(tick=pb.Tick(tick=1)))
    asyncio.run(ended_in_time(port))
    assert [each.WhichOneof("kind") for each in port.control] == ["tick"]


def asked_for_status() -> tuple[Side, Any]:
    """A shard's rules, and as much of its driver as Status looks at."""
    one, _ = begun("a-0")
    driver = SimpleNamespace(
        shard=one.shard,
        now=lambda: one.now,
        recording=SimpleNamespace(bytes_received=0, bytes_sent=0),
        background=SimpleNamespace(troubles=[]),
        machine=SimpleNamespace(metrics=SimpleNamespace(refused_peer=None)),
    )
    return one, driver


def test_the_operators_last_word_on_the_job_is_told_to_whoever_asks_next() -> None:
    _, driver = asked_for_status()
    service = SyncerService(driver)

    def ask(**said: Any) -> pb.StatusReply:
        return asyncio.run(service.Status(pb.StatusRequest(**said), None))

    assert ask().intent == pb.INTENT_UNSPECIFIED
    assert ask(intent=pb.INTENT_FAIL, why="too late").intent == pb.INTENT_FAIL
    assert (ask().intent, ask().why) == (pb.INTENT_FAIL, "too late")
    ask(intent=pb.INTENT_RUN)
    assert (ask().intent, ask().why) == (pb.INTENT_RUN, "")


def test_a_status_tells_what_of_the_run_file_must_be_equal() -> None:
    one, driver = asked_for_status()
    reply = asyncio.run(SyncerService(driver).Status(pb.StatusRequest(), None))
    assert first_difference(one.state.run_file, reply.must_equal) is None
    assert hash_of(reply.must_equal) == one.state.run_file.hash
