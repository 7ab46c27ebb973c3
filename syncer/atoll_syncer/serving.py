"""The life of one shard's process: wait for its turn, begin the term, serve, stop.

The machine comes from outside: `__main__` makes one of real parts, tests/sim one in virtual time. A
process listens only during its term (rule 20); one whose term another process has begun first waits
again. The probes' server listens from
the start: its service ALIVE is always SERVING, the usual one only while the process listens. It
serves until a signal stops it or its own rules ask for the exit; then sessions get a second to end,
the log's queue two, and the goodbye two.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from atoll_protos.exits import ExitCode
from atoll_protos.names import ALIVE
from atoll_syncer.driver import Driver
from atoll_syncer.duties.background import Thread
from atoll_syncer.duties.port import Machine
from atoll_syncer.edges.job_files import follow
from atoll_syncer.edges.service import add_services
from atoll_syncer.model.history import History
from atoll_syncer.model.state import Beginning
from atoll_syncer.rules.runs import of_another_job
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.files import StoreCorrupt
from atoll_syncer.storage.takeover import HeartbeatWatch, wait_for_turn

SESSIONS_END_SECONDS = 1.0  # how long open sessions may still speak after a stop
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

log = structlog.get_logger()


class OtherJobError(Exception):
    """The store was made under another run file, so this process must not carry it on."""


async def serve_shard(machine: Machine, stopping: asyncio.Event) -> ExitCode:
    """Until `stopping`, or an end of the shard's own; returns the process' exit code."""
    stop = asyncio.create_task(stopping.wait())
    health = await start_health(machine)
    try:
        driver = await begin(machine, stop)
    except OtherJobError as error:
        log.error("exit", code=int(ExitCode.OTHER_JOB), reason=str(error))
        return ExitCode.OTHER_JOB
    except StoreCorrupt as error:  # a newer version of Atoll wrote it, and may come back
        log.error("exit", code=int(ExitCode.TRY_AGAIN), reason=str(error))
        return ExitCode.TRY_AGAIN
    if driver is None:
        return ExitCode.TRY_AGAIN
    try:
        if driver.begun.done():
            await serve(machine, driver, health, stop)
    finally:
        await driver.stop()
    if driver.exit.done():
        ending = driver.exit.result()
        log.error("exit", code=int(ending.code), reason=ending.reason)
        return ExitCode(ending.code)
    return ExitCode.FINAL if driver.state.ending.complete else ExitCode.TRY_AGAIN


async def first_of(*ends: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
    """Wait for one of them; the coroutines end with it."""
    tasks = [asyncio.create_task(each) for each in ends if asyncio.iscoroutine(each)]
    futures = [each for each in ends if asyncio.isfuture(each)]
    try:
        await asyncio.wait([*tasks, *futures], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def start_health(machine: Machine) -> health_aio.HealthServicer:
    health, server = health_aio.HealthServicer(), machine.health_server
    await health.set("", NOT_SERVING)
    await health.set(ALIVE, SERVING)
    if server is not None:
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        await server.start()
    return health


async def begin(machine: Machine, stop: asyncio.Future[Any]) -> Driver | None:
    """Take the shard over: a driver whose term has begun, or that ends; None: `stop` came first.

    Raises OtherJobError and StoreCorrupt.
    """
    waited = False
    while True:
        turn = asyncio.create_task(take_turn(machine))
        await first_of(stop, turn)
        if not turn.done():
            turn.cancel()
            return None
        history = turn.result()
        if other := of_another_job(history, machine.run_file):
            raise OtherJobError(f"the store cannot be carried on: {other}")
        driver = make_driver(machine, history, waited=waited)
        await driver.start()
        await first_of(stop, driver.begun, driver.exit)
        if driver.begun.done() or not driver.was_deposed:
            return driver
        log.info("another process was faster", shard=machine.shard)
        driver.abandon()
        waited = True


async def serve(
    machine: Machine,
    driver: Driver,
    health: health_aio.HealthServicer,
    stop: asyncio.Future[Any],
) -> None:
    """Until `stop` or an end of the driver. Raises SpecError for a port in use."""
    if machine.read_length is not None:
        driver.background.spawn(follow(driver, machine.read_length, driver.shard.length_heard))
    if machine.read_expected is not None:
        driver.background.spawn(follow(driver, machine.read_expected, driver.shard.expected_heard))
    if stop.done() or driver.exit.done():
        return
    server = machine.open_server()
    add_services(server, driver, machine.identity)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await server.start()
    await health.set("", SERVING)
    log.info("serving", shard=machine.shard, epoch=driver.state.history.epoch)
    await first_of(stop, driver.exit)
    await health.set("", NOT_SERVING)
    await server.stop(SESSIONS_END_SECONDS)
    await health.enter_graceful_shutdown()


async def take_turn(machine: Machine) -> History:
    """Return the log's history, read when it is this process's turn."""
    loop, thread = asyncio.get_running_loop(), machine.executors[Thread.LOG]

    def in_thread(look: Callable[[], Any]) -> asyncio.Future[Any]:
        return loop.run_in_executor(thread, look)

    journal = machine.journal
    period = machine.store.heartbeat_seconds
    watch = HeartbeatWatch(journal, machine.pod, machine.clock, period=period)
    history = await wait_for_turn(watch, in_thread)
    machine.metrics.store_troubles.labels(StoreCorrupt.kind).inc(journal.lost_entries)
    return history


def make_driver(machine: Machine, history: History, *, waited: bool) -> Driver:
    """Return the shard's rules over this history, and their driver.

    Only a process that finds an empty log at its start may know that no run can exist.
    """
    fresh = machine.fresh and not waited and not history.epoch and not history.incomplete
    beginning = Beginning(
        run_file=machine.run_file,
        shard=machine.shard,
        pod=machine.pod,
        instance=machine.instance,
        fresh=fresh,
        new_run=machine.new_run,
        new_key=machine.new_secret(),
        expected=machine.expected,
        length=machine.read_length() if machine.read_length is not None else None,
    )
    return Driver(machine.watch(Shard(beginning, history, machine.clock())), machine)
