"""What the driver keeps of a session that is gone; tests/sim runs all of the driver."""

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_syncer.driver import Driver
from atoll_syncer.duties.log_queue import LogQueue
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, SendReply
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.store import MARK, FileStore

SESSION = 3


class Kept:
    """Values that only keep and forget."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()

    def examine(self, head: pb.Transfer, payload: bytearray) -> str:
        return "examined"

    def keep(self, session: int, slice_: int, arrived: str) -> None:
        self.sessions.add(session)

    def forget(self, session: int) -> None:
        self.sessions.discard(session)


def a_driver(**parts: Any) -> Any:
    """A driver without what these tests do not touch."""

    async def run(thread: object, work: Callable[[], object]) -> object:
        return work()

    def nothing(*_: object) -> list[Effect]:
        return []

    driver = Driver.__new__(Driver)
    known = {
        "shard": SimpleNamespace(session_closed=nothing, transfer_verified=nothing),
        "values": Kept(),
        "background": SimpleNamespace(run=run),
        "now": lambda: 0.0,
        "feed": list,
    }
    for name, part in {**known, **parts}.items():
        setattr(driver, name, part)
    return driver


def of_sessions(*numbers: int) -> SimpleNamespace:
    return SimpleNamespace(sessions=SimpleNamespace(open=dict.fromkeys(numbers)))


SEED = pb.Transfer(seed=pb.Seed(slice=0))


@pytest.mark.parametrize("head", [SEED, pb.Transfer(held=pb.Held())])
async def test_what_is_examined_when_its_session_ends_is_forgotten(head: pb.Transfer) -> None:
    driver = a_driver(state=of_sessions())
    await driver.transferred(SESSION, head, bytearray())
    assert driver.values.sessions == set()
    driver = a_driver(state=of_sessions(SESSION))
    await driver.transferred(SESSION, SEED, bytearray())
    assert driver.values.sessions == {SESSION}
    driver.session_closed(SESSION)
    assert driver.values.sessions == set()


async def test_a_registrar_answers_when_the_entry_is_durable_and_not_before_rule_19() -> None:
    durable = asyncio.Event()

    async def until_stored(*_: object) -> None:
        await durable.wait()

    def mark(token: int, *_: object) -> list[Effect]:
        return [Append(log.Begun(shard=1)), SendReply(token, pb.MarkBegunReply())]

    driver = a_driver(
        shard=SimpleNamespace(registrar_request=mark, appended=lambda *_: []),
        state=SimpleNamespace(history=None),
        background=SimpleNamespace(until_stored=until_stored),
        metrics=SimpleNamespace(count=lambda _: None),
        values=None,
        _token=0,
        _deadline=SimpleNamespace(moved=lambda: None),
        _tidying=SimpleNamespace(appended=lambda *_: None, snapshot=lambda _: None),
        checkpoints=SimpleNamespace(appended=lambda: None),
    )
    del driver.feed  # its own
    journal: Any = SimpleNamespace(append=None)
    driver._log = LogQueue(journal, driver.background, driver._appended, lambda: None)
    appending = asyncio.create_task(driver._log.work())
    call = asyncio.create_task(driver.call(pb.MarkBegunRequest(shard=1)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not call.done()
    durable.set()
    assert await asyncio.wait_for(call, 60) == pb.MarkBegunReply()
    appending.cancel()


@pytest.mark.parametrize("deposed", [False, True])
async def test_a_driver_that_stops_writes_what_was_trained_unless_it_is_deposed_rule_35(
    deposed: bool,
) -> None:
    written: list[object] = []
    driver = a_driver(
        shard=SimpleNamespace(stopping=lambda: ["counted"]),
        feed=written.extend,
        exit=asyncio.get_running_loop().create_future(),
        background=SimpleNamespace(stop=lambda: written.append("stopped")),
        recording=SimpleNamespace(close=lambda: None),
        _log=SimpleNamespace(finish=partial(asyncio.sleep, 0)),
    )
    if deposed:
        driver.exit.set_result(None)
    await driver.stop()
    assert written == [*["counted"] * (not deposed), "stopped"]


async def test_a_shard_whose_store_was_emptied_ends_and_is_started_again_rule_22(
    store: FileStore,
) -> None:
    """It would go on with what nobody can read when it is gone, perhaps when no learner lives."""
    journal = Journal(store, lambda: 1.0)
    journal.append(log.TermBegun(epoch=1, pod="p", instance="p-1"))

    async def run(thread: object, work: Callable[[], object]) -> object:
        shutil.rmtree(store.root / "log")
        (store.root / MARK).unlink()
        (store.root / "log").mkdir()
        return work()

    state = SimpleNamespace(pod="p", instance="p-1", history=SimpleNamespace(epoch=1))
    driver = a_driver(
        state=state,
        store=SimpleNamespace(heartbeat_seconds=0.0),
        journal=journal,
        background=SimpleNamespace(run=run),
        exit=asyncio.get_running_loop().create_future(),
    )
    await asyncio.wait_for(driver._keep_beating(), 60)
    assert driver.exit.result().code is ExitCode.TRY_AGAIN
    assert "atoll.json is not there" in driver.exit.result().reason
    FileStore(store.root).open()
    assert Journal(store, lambda: 2.0).read().epoch == 0
