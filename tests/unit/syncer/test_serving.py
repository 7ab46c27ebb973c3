"""How a shard's process ends that cannot take its shard over, or that is stopped."""

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


async def nothing(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (SupersededError("pod b has followed this pod"), ExitCode.SUPERSEDED),
        (serving.OtherJobError("the store holds another job's state"), ExitCode.OTHER_JOB),
        (NEWER, ExitCode.TRY_AGAIN),  # the newer image may come back
        ("complete", ExitCode.FINAL),
        ("open", ExitCode.TRY_AGAIN),
    ],
)
async def test_a_shard_that_is_not_taken_over_or_is_stopped_ends_with_the_code_that_says_why(
    monkeypatch: pytest.MonkeyPatch, given: Exception | str, code: ExitCode
) -> None:
    driver = SimpleNamespace(
        exit=asyncio.get_running_loop().create_future(),
        stop=nothing,
        state=SimpleNamespace(ending=SimpleNamespace(complete=given == "complete")),
    )
    stopping = asyncio.Event()

    async def start(machine: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        asyncio.get_running_loop().call_soon(stopping.set)
        return driver, SimpleNamespace(enter_graceful_shutdown=nothing)

    monkeypatch.setattr(serving, "start", start)
    machine: Any = SimpleNamespace(server=SimpleNamespace(stop=nothing), health_server=None)
    assert await serving.serve_shard(machine, stopping) is code


async def test_a_store_of_another_job_is_not_carried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_turn(machine: Any) -> Any:
        return History(run="r", run_hash="another")

    monkeypatch.setattr(serving, "take_turn", take_turn)
    monkeypatch.setattr(serving, "of_another_job", lambda history, file: history.run_hash)
    machine: Any = SimpleNamespace(run_file=None)
    with pytest.raises(serving.OtherJobError, match="another"):
        await serving.start(machine)
