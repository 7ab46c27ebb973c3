"""Clients and handlers of the services of v1/atoll.proto, made from its descriptor.

Both work with grpc and with grpc.aio. Bulk has no place in the descriptor: see frames.
"""

from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

import atoll_protos.v1.atoll_pb2 as pb


class Service(StrEnum):
    """The names of the services."""

    SYNCER = "Syncer"
    REGISTRAR = "Registrar"
    MACHINES = "Machines"


def client_of(service: Service, channel: Any) -> Any:
    """The methods of a service as callables of a channel, by their names."""
    calls = {}
    for each in _methods(service):
        asked, answered = GetMessageClass(each.input_type), GetMessageClass(each.output_type)
        calls[each.name] = getattr(channel, _kind(each))(
            f"/{each.containing_service.full_name}/{each.name}",
            request_serializer=asked.SerializeToString,
            response_deserializer=answered.FromString,
        )
    return SimpleNamespace(**calls)


def add_handlers(service: Service, servicer: Any, server: Any) -> None:
    """Serve the methods of a service that `servicer` has; gRPC answers the others UNIMPLEMENTED."""
    handlers = {}
    for each in _methods(service):
        asked, answered = GetMessageClass(each.input_type), GetMessageClass(each.output_type)
        if hasattr(servicer, each.name):
            handlers[each.name] = getattr(grpc, f"{_kind(each)}_rpc_method_handler")(
                getattr(servicer, each.name),
                request_deserializer=asked.FromString,
                response_serializer=answered.SerializeToString,
            )
    name = pb.DESCRIPTOR.services_by_name[service].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


def _methods(service: Service) -> list[MethodDescriptor]:
    return list(pb.DESCRIPTOR.services_by_name[service].methods)


def _kind(method: MethodDescriptor) -> str:
    asks = "stream" if method.client_streaming else "unary"
    return f"{asks}_{'stream' if method.server_streaming else 'unary'}"
