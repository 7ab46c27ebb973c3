"""A shard's calls to the registrar."""

from typing import Any

import grpc
import grpc.aio
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.channels import control_options
from atoll_protos.v1.atoll_pb2_grpc import RegistrarStub

CALL_SECONDS_MAX = 10.0

log = structlog.get_logger()


class RegistrarClient:
    """Asks shard 0; says None when it does not answer, so that the asker tries again."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._stub: Any = None
        self._away = False

    async def ask(self, request: Any) -> Any:
        """The reply, or None while the registrar is away."""
        if self._stub is None:
            channel = grpc.aio.insecure_channel(self._endpoint, options=control_options())
            self._stub = RegistrarStub(channel)
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
