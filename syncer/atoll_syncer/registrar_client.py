"""Calls of the other shards to the registrar (shard 0), over gRPC."""

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.channels import control_options
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub

CALL_SECONDS_MAX = 10.0

log = structlog.get_logger()


def open_channel(endpoint: str) -> grpc.aio.Channel:
    """gRPC's own; to be called in the event loop."""
    return grpc.aio.insecure_channel(endpoint, options=control_options())


class RegistrarClient:
    """Calls shard 0.

    The channel is opened with the first call and connects again by itself from then on. An outage
    of the registrar is logged once, when it begins.
    """

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel]) -> None:
        self._open_channel = open_channel
        self._stub: Any = None
        self._away = False

    async def ask(self, request: Any) -> Any:
        """The reply, or None when the registrar does not answer: the caller tries again."""
        if self._stub is None:
            self._stub = RegistrarStub(self._open_channel())
        methods = {
            pb.HelloRequest: self._stub.Hello,
            pb.MarkBegunRequest: self._stub.MarkBegun,
            pb.ReportFinalRequest: self._stub.ReportFinal,
        }
        try:
            reply = await methods[type(request)](request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if not self._away:
                log.warning("the registrar does not answer", reason=error.details())
            self._away = True
            return None
        self._away = False
        return reply
