"""A shard's streams: what an error in the handling of a message does to the process."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.service import SyncerService


class BugError(Exception):
    """What the rules must not raise."""


class Context:
    """The server's side of one stream, which gives these messages and then ends."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [*messages, grpc.aio.EOF]

    async def read(self) -> Any:
        return self.messages.pop(0)

    async def write(self, message: Any) -> None:
        del message


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
