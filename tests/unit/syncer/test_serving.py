"""How a shard's process ends that cannot take its shard over."""

import asyncio
from typing import Any

import pytest

from atoll_protos.exits import ExitCode
from atoll_syncer import serving
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
