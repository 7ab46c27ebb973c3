"""How a shard's process begins its term, and how one ends that does not or is stopped."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode
from atoll_syncer import serving
from atoll_syncer.model.effects import EndProcess
from atoll_syncer.model.history import History
from atoll_syncer.storage.files import StoreCorrupt

NEWER = StoreCorrupt("log/7", "an entry of the unknown kind X", "use the version that wrote it")
FASTER = EndProcess(ExitCode.SUPERSEDED, "another process has taken this shard over")


class Drivers:
    """Drivers of which each begins its term, or is deposed before it has."""

    def __init__(self, *begins: bool) -> None:
        self.begins, self.did = list(begins), list[str]()
        self.complete = False

    def make(self, machine: object, history: object, *, waited: bool) -> Any:
        future = asyncio.get_running_loop().create_future
        driver = SimpleNamespace(begun=future(), exit=future(), was_deposed=False)

        async def start() -> None:
            self.did.append("starts again" if waited else "starts")
            if self.begins.pop(0):
                driver.begun.set_result(None)
            else:
                driver.was_deposed = True
                driver.exit.set_result(FASTER)

        async def stop() -> None:
            self.did.append("stops")

        driver.start, driver.stop = start, stop
        driver.abandon = lambda: self.did.append("gives up")
        ending = SimpleNamespace(complete=self.complete)
        driver.state = SimpleNamespace(ending=ending, history=SimpleNamespace(epoch=1))
        return driver


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def take_turn(machine: Any) -> Any:
        return History()

    monkeypatch.setattr(serving, "take_turn", take_turn)
    monkeypatch.setattr(serving, "of_another_job", lambda history, file: history.run_hash)
    no_files = {"read_length": None, "read_expected": None}
    return SimpleNamespace(run_file=None, shard=0, health_server=None, **no_files)


def stopped_in(drivers: Drivers, stopping: asyncio.Event) -> Callable[..., Any]:
    async def serve(*_: object) -> None:
        drivers.did.append("serves")
        stopping.set()

    return serve


@pytest.mark.parametrize("complete", [False, True])
async def test_a_shard_that_is_stopped_says_whether_the_job_is_over(
    monkeypatch: pytest.MonkeyPatch, machine: Any, complete: bool
) -> None:
    drivers, stopping = Drivers(True), asyncio.Event()
    drivers.complete = complete
    monkeypatch.setattr(serving, "make_driver", drivers.make)
    monkeypatch.setattr(serving, "serve", stopped_in(drivers, stopping))
    code = await serving.serve_shard(machine, stopping)
    assert code is (ExitCode.FINAL if complete else ExitCode.TRY_AGAIN)
    assert drivers.did == ["starts", "serves", "stops"]


async def test_of_two_processes_that_begin_at_once_one_waits_again_rule_20(
    monkeypatch: pytest.MonkeyPatch, machine: Any
) -> None:
    drivers, stopping = Drivers(False, True), asyncio.Event()
    monkeypatch.setattr(serving, "make_driver", drivers.make)
    monkeypatch.setattr(serving, "serve", stopped_in(drivers, stopping))
    await serving.serve_shard(machine, stopping)
    assert drivers.did == ["starts", "gives up", "starts again", "serves", "stops"]


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (serving.OtherJobError("the store holds another job's state"), ExitCode.OTHER_JOB),
        (NEWER, ExitCode.TRY_AGAIN),  # the newer image may come back
    ],
)
async def test_a_shard_that_is_not_taken_over_ends_with_the_code_that_says_why(
    monkeypatch: pytest.MonkeyPatch, machine: Any, raised: Exception, code: ExitCode
) -> None:
    async def begin(*_: object) -> Any:
        raise raised

    monkeypatch.setattr(serving, "begin", begin)
    assert await serving.serve_shard(machine, asyncio.Event()) is code


async def test_a_process_that_waits_ends_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, machine: Any
) -> None:
    stopping = asyncio.Event()

    async def take_turn(machine: Any) -> Any:
        stopping.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(serving, "take_turn", take_turn)
    assert await serving.serve_shard(machine, stopping) is ExitCode.TRY_AGAIN


async def test_a_port_that_is_taken_when_the_term_begins_gives_the_shard_back(
    monkeypatch: pytest.MonkeyPatch, machine: Any
) -> None:
    def open_server() -> Any:
        raise SpecError("--listen", "127.0.0.1:1 cannot be bound", "give another one")

    drivers, machine.open_server = Drivers(True), open_server
    monkeypatch.setattr(serving, "make_driver", drivers.make)
    with pytest.raises(SpecError, match="cannot be bound"):
        await serving.serve_shard(machine, asyncio.Event())
    assert drivers.did == ["starts", "stops"]


class Listener:
    """A server, and what becomes of it."""

    def __init__(self, did: list[str]) -> None:
        self.did = did

    async def start(self) -> None:
        self.did.append("listens")

    async def stop(self, grace: float) -> None:
        self.did.append(f"closes in {grace:g} s")


async def test_a_shard_is_ready_while_it_listens_which_it_does_until_its_end(
    monkeypatch: pytest.MonkeyPatch, machine: Any
) -> None:
    drivers, stopping = Drivers(True), asyncio.Event()
    driver = drivers.make(machine, None, waited=False)
    driver.begun.set_result(None)
    machine.open_server, machine.identity = lambda: Listener(drivers.did), None
    monkeypatch.setattr(serving, "add_services", lambda *_: None)
    monkeypatch.setattr(health_pb2_grpc, "add_HealthServicer_to_server", lambda *_: None)
    health, stop = await serving.start_health(machine), asyncio.create_task(stopping.wait())

    async def status() -> int:
        request = health_pb2.HealthCheckRequest(service="")
        return int((await health.Check(request, None)).status)

    served = asyncio.create_task(serving.serve(machine, driver, health, stop))
    await asyncio.sleep(0.01)
    assert (drivers.did, await status()) == (["listens"], serving.SERVING)
    driver.exit.set_result(EndProcess(ExitCode.TRY_AGAIN, "its store was emptied"))
    await served
    assert drivers.did[1:] == ["closes in 1 s"]
    assert await status() == serving.NOT_SERVING
    stop.cancel()


async def test_a_store_of_another_job_is_not_carried_on(
    monkeypatch: pytest.MonkeyPatch, machine: Any
) -> None:
    async def take_turn(machine: Any) -> Any:
        return History(run="r", run_hash="another")

    monkeypatch.setattr(serving, "take_turn", take_turn)
    with pytest.raises(serving.OtherJobError, match="another"):
        await serving.begin(machine, asyncio.get_running_loop().create_future())


@pytest.mark.parametrize(
    ("history", "waited", "fresh"),
    [
        (History(), False, True),
        (History(), True, False),
        (History(epoch=1), False, False),  # somebody was here, and may have begun a run
    ],
)
def test_only_a_process_that_comes_first_believes_that_no_run_can_exist_rule_2(
    monkeypatch: pytest.MonkeyPatch, history: History, waited: bool, fresh: bool
) -> None:
    monkeypatch.setattr(serving, "Shard", lambda beginning, *_: beginning)
    monkeypatch.setattr(serving, "Driver", lambda beginning, _: beginning)
    machine: Any = SimpleNamespace(
        run_file=None,
        shard=0,
        pod="p",
        instance="p-1",
        fresh=True,
        new_run="r",
        new_secret=lambda: "s",
        expected=None,
        read_length=None,
        clock=lambda: 0.0,
        watch=lambda shard: shard,
    )
    beginning: Any = serving.make_driver(machine, history, waited=waited)
    assert beginning.fresh is fresh
