"""The life of one shard's process: wait for its turn, restore, serve, stop.

The machine comes from outside: `__main__` makes one of real parts, tests/sim one in virtual time. A
process accepts connections only when it has the shard (rule 20). It serves until a signal stops it
or its own rules ask for the exit; then sessions get a second to end, and the log's queue two.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from atoll_protos.exits import ExitCode
from atoll_syncer.driver import Driver
from atoll_syncer.duties.background import Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.edges.job_files import follow
from atoll_syncer.edges.service import add_services
from atoll_syncer.model.history import History
from atoll_syncer.model.state import Beginning
from atoll_syncer.rules.runs import of_another_job
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage.store import StoreCorrupt
from atoll_syncer.storage.takeover import SupersededError, wait_for_turn

SESSIONS_END_SECONDS = 1.0  # how long open sessions may still speak after a stop

log = structlog.get_logger()


class OtherJobError(Exception):
    """The store was made under another run file, so this process must not carry it on."""


async def serve_shard(machine: Machine, stopping: asyncio.Event) -> ExitCode:
    """Until `stopping`, or an end of the shard's own; returns the process' exit code."""
    stop, starting = asyncio.create_task(stopping.wait()), asyncio.create_task(start(machine))
    await asyncio.wait({stop, starting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return ExitCode.TRY_AGAIN
    try:
        driver, health = starting.result()
    except SupersededError as error:
        log.error("exit", code=int(ExitCode.SUPERSEDED), reason=str(error))
        return ExitCode.SUPERSEDED
    except OtherJobError as error:
        log.error("exit", code=int(ExitCode.OTHER_JOB), reason=str(error))
        return ExitCode.OTHER_JOB
    except StoreCorrupt as error:  # a newer version of Atoll wrote it, and may come back
        log.error("exit", code=int(ExitCode.TRY_AGAIN), reason=str(error))
        return ExitCode.TRY_AGAIN
    ends: list[asyncio.Future[Any]] = [driver.exit, stop]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await health.enter_graceful_shutdown()
    await asyncio.gather(*(each.stop(SESSIONS_END_SECONDS) for each in _servers(machine)))
    await driver.stop()
    if driver.exit.done():
        ending = driver.exit.result()
        log.error("exit", code=int(ending.code), reason=ending.reason)
        return ExitCode(ending.code)
    return ExitCode.FINAL if driver.state.ending.complete else ExitCode.TRY_AGAIN


async def start(machine: Machine) -> tuple[Driver, health_aio.HealthServicer]:
    """Take the shard over, and serve it. Raises SupersededError and OtherJobError."""
    history = await take_turn(machine)
    if other := of_another_job(history, machine.run_file):
        raise OtherJobError(f"the store cannot be carried on: {other}")
    driver, health = make_driver(machine, history), health_aio.HealthServicer()
    add_services(machine.server, driver, machine.identity)
    for server in _servers(machine):
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await driver.start()
    if machine.read_length is not None:
        driver.background.spawn(follow(driver, machine.read_length, driver.shard.length_heard))
    if machine.read_expected is not None:
        driver.background.spawn(follow(driver, machine.read_expected, driver.shard.expected_heard))
    for server in _servers(machine):
        await server.start()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    log.info("serving", shard=machine.shard, epoch=driver.state.history.epoch)
    return driver, health


def _servers(machine: Machine) -> list[Any]:
    """That of the shard, and the one of the probes where it has one (they speak plain text)."""
    return [each for each in (machine.server, machine.health_server) if each is not None]


async def take_turn(machine: Machine) -> History:
    """The log's history, read when it is this process's turn. Raises SupersededError."""
    loop, thread = asyncio.get_running_loop(), machine.executors[Thread.LOG]

    def in_thread(look: Callable[[], Any]) -> asyncio.Future[Any]:
        return loop.run_in_executor(thread, look)

    history = await wait_for_turn(machine.journal, machine.pod, in_thread, machine.clock)
    machine.metrics.store_troubles.labels(StoreCorrupt.kind).inc(machine.journal.lost_entries)
    return history


def make_driver(machine: Machine, history: History) -> Driver:
    """The shard's rules over this history, and their driver."""
    beginning = Beginning(
        run_file=machine.run_file,
        shard=machine.shard,
        pod=machine.pod,
        instance=machine.instance,
        fresh=machine.fresh and not history.incomplete,
        new_run=machine.new_run,
        new_key=machine.new_secret(),
        expected=machine.expected,
        length=machine.read_length() if machine.read_length is not None else None,
    )
    return Driver(machine.watch(Shard(beginning, history, machine.clock())), machine)
