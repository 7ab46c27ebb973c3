"""How a shard's process ends that cannot take its shard over."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from atoll_protos.exits import ExitCode
from atoll_syncer import serving
from atoll_syncer.model.history import History
from atoll_syncer.storage.store import StoreCorrupt
from atoll_syncer.storage.takeover import SupersededError

NEWER = StoreCorrupt("log/7", "an entry of the unknown kind X", "use the version that wrote it")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SupersededError("pod b has followed this pod"), ExitCode.SUPERSEDED),
        (serving.OtherJobError("the store holds another job's state"), ExitCode.OTHER_JOB),
        (NEWER, ExitCode.TRY_AGAIN),  # the newer image may come back
    ],
)
def test_a_shard_that_is_not_taken_over_ends_with_the_code_that_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: ExitCode
) -> None:
    async def start(machine: Any) -> Any:
        raise error

    async def serve() -> ExitCode:
        machine: Any = None
        return await serving.serve_shard(machine, asyncio.Event())

    monkeypatch.setattr(serving, "start", start)
    assert asyncio.run(serve()) is code


@pytest.mark.parametrize(("complete", "code"), [(True, ExitCode.FINAL), (False, 75)])
def test_a_shard_that_is_stopped_says_whether_its_job_is_complete(
    monkeypatch: pytest.MonkeyPatch, complete: bool, code: int
) -> None:
    async def nothing(*_: object) -> None:
        return None

    async def serve() -> ExitCode:
        stopping = asyncio.Event()
        driver = SimpleNamespace(
            exit=asyncio.get_running_loop().create_future(),
            stop=nothing,
            shard=SimpleNamespace(complete=complete),
        )

        async def start(machine: Any) -> Any:
            return driver, SimpleNamespace(enter_graceful_shutdown=nothing)

        monkeypatch.setattr(serving, "start", start)
        server = SimpleNamespace(stop=nothing)
        machine: Any = SimpleNamespace(server=server, health_server=None)
        serves = asyncio.create_task(serving.serve_shard(machine, stopping))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stopping.set()
        return await serves

    assert asyncio.run(serve()) == code


def test_a_store_of_another_job_is_not_carried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_turn(machine: Any) -> Any:
        return History(run="r", run_hash="another")

    monkeypatch.setattr(serving, "take_turn", take_turn)
    monkeypatch.setattr(serving, "of_another_job", lambda history, file: history.run_hash)
    machine: Any = SimpleNamespace(run_file=None)
    with pytest.raises(serving.OtherJobError, match="another"):
        asyncio.run(serving.start(machine))
