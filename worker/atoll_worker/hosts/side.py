"""The side channel: one gRPC stream between the head of a learner and the lane process of a host.

The lane process dials; rule 37 says who may. An end is lost when its stream ends before it has said
that it leaves, or when it says nothing for too long. gRPC's own pings do not show a process that is
stopped, so the beats are messages. Silence is counted in the own beats and not by the clock: a
process that was stopped itself makes one beat when it goes on, and has heard what had come
meanwhile before the next one.
"""

import asyncio
import contextlib
import hmac
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.network.addresses import joined
from atoll_protos.network.channels import (
    CONTROL_BYTES_MAX,
    SECRET_METADATA,
    Folder,
    Options,
    ServerFiles,
    open_channel,
)
from atoll_protos.network.credentials import Needed
from atoll_protos.network.identity import Identity, Role
from atoll_protos.network.listening import EVERYWHERE
from atoll_protos.network.services import Service, add_handlers, client_of

BEAT_SECONDS: Final = 2.0
BEATS_OF_SILENCE: Final = 4  # at least so many fit into the limit
PEER_URI: Final = "peer_spiffe_id"  # gRPC's name of the only URI of a peer's certificate
BROKEN: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
OPTIONS: Final[Options] = [
    ("grpc.max_receive_message_length", CONTROL_BYTES_MAX),
    ("grpc.max_send_message_length", CONTROL_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.so_reuseport", 0),
]


class SideStream:
    """One end; `call` is gRPC's, and `kind` what this end sends. `run` is its life."""

    def __init__(self, call: Any, kind: type[Any], silence_seconds_max: float) -> None:
        self._call, self._kind = call, kind
        self._unsent: asyncio.Queue[Any] = asyncio.Queue()  # None: nothing follows
        self._silence_seconds_max = silence_seconds_max
        self._beat_seconds = min(BEAT_SECONDS, silence_seconds_max / BEATS_OF_SILENCE)
        self._silent_beats = 0  # of this end, since the other one was heard
        self._aborted, self._over = asyncio.Event(), asyncio.Event()
        self.other_leaves = False

    def send(self, **message: Any) -> None:
        """Put one message in line, by its kind; what cannot be sent is seen by who reads."""
        self._unsent.put_nowait(self._kind(**message))

    async def run(self, on_message: Callable[[Any], None]) -> str:
        """Until the stream ends: how the other end was lost, empty if it has left in order."""
        lives = self._read(on_message), self._write(), self._beat(), self._abort()
        works = [asyncio.create_task(each) for each in lives]
        try:
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            return next(work.result() for work in works if work in done)
        except asyncio.CancelledError:  # gRPC ends the call so when the other end breaks it off
            return self.how_ended
        finally:
            self._over.set()
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def leave(self, seconds_max: float) -> None:
        """What was sent has left, and the other end knows that this is no loss."""
        self.send(left=pb.Left())
        self._unsent.put_nowait(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._over.wait()
        self.abort()

    def abort(self) -> None:
        """The other end has lost this one, unless this one has said that it leaves."""
        self._aborted.set()

    @property
    def how_ended(self) -> str:
        return "" if self.other_leaves else "has ended"

    async def _read(self, on_message: Callable[[Any], None]) -> str:
        while (message := await self._next()) is not grpc.aio.EOF:
            if isinstance(message, str):
                return message
            self._silent_beats = 0
            kind = message.WhichOneof("kind")
            if kind == "left":
                self.other_leaves = True
            elif kind not in (None, "beat"):
                on_message(getattr(message, kind))
        return self.how_ended

    async def _next(self) -> Any:
        try:
            return await self._call.read()
        except BROKEN as error:
            if isinstance(error, grpc.aio.AioRpcError) and error.code() in REFUSED:
                return f"has turned this process away: {error.details()}"
            return self.how_ended

    async def _write(self) -> str:
        try:
            while (message := await self._unsent.get()) is not None:
                await self._call.write(message)
            if self._kind is pb.ToLaneProcess:
                return ""  # the server's end of a call ends it
            await self._call.done_writing()
        except BROKEN:
            pass
        return str(await asyncio.get_running_loop().create_future())  # who reads finds out how

    async def _beat(self) -> str:
        limit = self._silence_seconds_max
        while self._silent_beats <= math.ceil(limit / self._beat_seconds):
            await asyncio.sleep(self._beat_seconds)
            self.send(beat=pb.Beat())
            self._silent_beats += 1
        return f"has said nothing for {limit:g} s: it is stopped, or its host is gone"

    async def _abort(self) -> str:
        await self._aborted.wait()
        return ""


REFUSED: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(kw_only=True, eq=False)
class Door:
    """Where the head serves. `follow` gets each call of a process that knows the secret."""

    folder: Folder
    secret: str
    follow: Callable[[Any], Awaitable[None]]
    refused: Callable[[str], None]
    needed: Needed | None = None  # of who calls; None in plain text
    server: grpc.aio.Server | None = None

    async def open(self, host: str) -> int:
        """Listen at `host`, one of EVERYWHERE for all addresses; returns the port.

        Raises what `Folder.read` raises.
        """
        address = joined("::" if host in EVERYWHERE else host, 0)
        self.server = grpc.aio.server(options=OPTIONS)
        add_handlers(Service.HEAD, self, self.server)
        own = self.folder.read()
        if own is None:
            port = self.server.add_insecure_port(address)
        else:
            mine = own.identity
            self.needed = Needed(
                namespace=mine.namespace,
                job=mine.job,
                uid=mine.uid,
                region=mine.region,
                roles=(Role.LEARNER,),
            )
            files = ServerFiles(self.folder, own)
            port = self.server.add_secure_port(address, files.credentials())
        await self.server.start()
        return int(port)

    async def close(self, seconds_max: float) -> None:
        if self.server is not None:
            await self.server.stop(seconds_max)

    def objection(self, context: Any) -> str:
        """Why who calls is no process of this learner; empty if it may be one."""
        said = dict(context.invocation_metadata() or ())
        if not hmac.compare_digest(str(said.get(SECRET_METADATA)).encode(), self.secret.encode()):
            return "it has another secret"
        if self.needed is None:
            return ""
        uris = [each.decode() for each in context.auth_context().get(PEER_URI, ())]
        try:
            unmet = self.needed.unmet(Identity.parse(uris[0] if len(uris) == 1 else ""))
        except SpecError as error:
            return f"its certificate {error.problem}"
        return f"its certificate {unmet}" if unmet else ""

    async def Follow(self, request_iterator: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        del request_iterator
        if reason := self.objection(context):
            self.refused(reason)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        await context.send_initial_metadata(())
        await self.follow(context)


def dial(address: str, folder: Folder) -> grpc.aio.Channel:
    """Raises what `Folder.read` raises."""
    own = folder.read()
    return open_channel(address, OPTIONS, own, own.identity.learner_name if own else "")


def followed(channel: grpc.aio.Channel, secret: str, silence_seconds_max: float) -> SideStream:
    call = client_of(Service.HEAD, channel).Follow(metadata=((SECRET_METADATA, secret),))
    return SideStream(call, pb.ToHead, silence_seconds_max)
