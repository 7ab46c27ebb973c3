"""What the driver keeps of a session that is gone; tests/sim runs all of the driver."""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_syncer.driver import Driver
from atoll_syncer.duties.storing import LogQueue
from atoll_syncer.model import log
from atoll_syncer.model.effects import Append, Effect, EndProcess, SendReply
from unit.syncer.shard_side import begun, version

SESSION = 3


class Kept:
    """Values that only keep and forget."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.steps: list[int] = []

    def examine(self, head: pb.Transfer, payload: bytearray, steps: int) -> str:
        self.steps.append(steps)
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
    return SimpleNamespace(sessions=SimpleNamespace(open=dict.fromkeys(numbers)), recovery=None)


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


async def test_a_held_version_is_measured_by_the_steps_that_the_rules_name_rule_47() -> None:
    """Slice 0 is at version 0, and nothing but a learner's claim shows that 3 was there."""
    one, (session, _, _) = begun("a-0", "a-1", "b-0", steps=100_000)
    claim = pb.SliceProgress(slice=0, held=3, digest="f" * 16)
    one.report(session, 1, slices=[claim])
    one.wait(1)
    head = pb.Transfer(held=pb.Held(version=version(0, 3, name="f" * 64)))
    driver = a_driver(state=one.state)
    await driver.transferred(session, head, bytearray())
    await driver.transferred(session, SEED, bytearray())
    assert driver.values.steps == [3, 0]


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
        beating=SimpleNamespace(reached=lambda: None),
        begun=SimpleNamespace(done=lambda: True),
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
async def test_a_driver_that_stops_writes_what_was_trained_and_says_goodbye_unless_deposed_rule_35(
    deposed: bool,
) -> None:
    written: list[object] = []

    async def note(what: str) -> None:
        written.append(what)

    driver = a_driver(
        shard=SimpleNamespace(stopping=lambda: ["counted"]),
        feed=written.extend,
        exit=asyncio.get_running_loop().create_future(),
        background=SimpleNamespace(stop=lambda: written.append("stopped")),
        recording=SimpleNamespace(close=lambda: None),
        begun=asyncio.get_running_loop().create_future(),
        _log=SimpleNamespace(finish=partial(note, "finished")),
        beating=SimpleNamespace(goodbye=partial(note, "goodbye")),
    )
    driver.begun.set_result(None)
    if deposed:
        driver.exit.set_result(EndProcess(ExitCode.SUPERSEDED, "followed"))
    await driver.stop()
    assert written == [*["counted", "finished", "goodbye"] * (not deposed), "stopped"]
