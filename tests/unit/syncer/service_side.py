"""The server's side of streams, without a server."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio

from atoll_protos.job.run_file import Expected
from atoll_protos.network.channels import SECRET_METADATA, SESSION_METADATA
from atoll_syncer.duties.port import SessionPort
from atoll_syncer.duties.recording import LinkEnd
from atoll_syncer.edges.service import SyncerService


class Context:
    """The server's side of one stream, which gives these messages and then ends."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [*messages, grpc.aio.EOF]

    async def read(self) -> Any:
        return self.messages.pop(0)

    async def write(self, message: Any) -> None:
        del message


class AbortedError(Exception):
    """A call that the shard refused."""


class BulkContext(Context):
    """A Bulk call with this metadata; what it sends is followed by silence."""

    def __init__(self, session: str, secret: str, *frames: Any) -> None:
        super().__init__(*frames)
        self.messages.pop()
        self.metadata: tuple[tuple[str, str], ...] = (
            (SESSION_METADATA, session),
            (SECRET_METADATA, secret),
        )

    def invocation_metadata(self) -> Any:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)

    async def read(self) -> Any:
        if not self.messages:
            await asyncio.Event().wait()
        return await super().read()


@asynccontextmanager
async def running(call: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A call that goes on until the block ends."""
    task = asyncio.create_task(call)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def serving(
    held: dict[int, int] | None = None, layout: Any = None, **shard: Any
) -> tuple[SyncerService, Any]:
    """A service with session 7, which holds these versions by slice, and its port."""
    port = SessionPort("secret of 7")
    session = SimpleNamespace(slot="a-0", held=held or {})
    driver: Any = SimpleNamespace(
        ports={7: port},
        session_numbers=count(1),
        shard=SimpleNamespace(**shard),
        state=SimpleNamespace(
            sessions=SimpleNamespace(open={7: session}),
            layout=layout,
            number=0,
            expected=Expected(),
        ),
        now=lambda: 0.0,
        feed=lambda effects: None,
        accepted={},
        failed=lambda _: None,
        session_closed=lambda _: None,
        machine=SimpleNamespace(new_secret=str),
        recording=SimpleNamespace(end_of=LinkEnd, received=lambda *_: None, sent=lambda *_: None),
    )
    return SyncerService(driver), port
