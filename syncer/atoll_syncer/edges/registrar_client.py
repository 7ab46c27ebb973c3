"""Calls of the other shards to the registrar (shard 0), over gRPC."""

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.network import channels
from atoll_protos.network.channels import PLAIN_TEXT, Folder, control_options, details_of
from atoll_protos.network.credentials import Credentials, OutOfDateError
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub

CALL_SECONDS_MAX = 10.0

log = structlog.get_logger()


OpenChannel = Callable[[Credentials | None], grpc.aio.Channel]


def open_channel(endpoint: str, credentials: Credentials | None) -> grpc.aio.Channel:
    """gRPC's own; to be called in the event loop."""
    return channels.open_channel(endpoint, control_options(), credentials)


class RegistrarClient:
    """Calls shard 0, on one channel, and on a new one for renewed credentials.

    So it does after a call without an answer: a process that stands keeps its connections, and
    another one may have the shard. An outage is logged once.
    """

    def __init__(self, open_channel: OpenChannel, folder: Folder = PLAIN_TEXT) -> None:
        self._open_channel, self._folder = open_channel, folder
        self._channel: Any = None
        self._stub: Any = None
        self._used: Credentials | None = None
        self._away = False

    async def ask(self, request: Any) -> Any:
        """Return the reply, or None when the registrar does not answer: the caller tries again."""
        try:
            await self._connect()
        except (SpecError, OutOfDateError) as error:
            return self._silent(str(error))
        channel = self._channel
        methods = {
            pb.HelloRequest: self._stub.Hello,
            pb.MarkBegunRequest: self._stub.MarkBegun,
            pb.ReportFinalRequest: self._stub.ReportFinal,
        }
        try:
            reply = await methods[type(request)](request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if self._channel is channel:
                self._channel = None  # not closed: that would cancel other calls under way
            return self._silent(details_of(error))
        self._away = False
        return reply

    async def _connect(self) -> None:
        """Raise SpecError and OutOfDateError for credentials that cannot be used."""
        credentials = self._folder.read()
        if self._channel is not None and credentials == self._used:
            return
        former, self._channel = self._channel, self._open_channel(credentials)
        self._stub, self._used = RegistrarStub(self._channel), credentials
        if former is not None:
            await former.close()

    def _silent(self, reason: str | None) -> None:
        if not self._away:
            log.warning("the registrar does not answer", reason=reason)
        self._away = True
