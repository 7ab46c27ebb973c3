"""gRPC options that both ends share."""

from typing import Final

BULK_METHOD: Final = "/atoll_protos.v1.Syncer/Bulk"
SESSION_METADATA: Final = "atoll-session"

CONTROL_BYTES_MAX: Final = 16 << 20  # the tensor table of a model with layout.TENSORS_MAX tensors
BULK_BYTES_MAX: Final = 2 << 20  # one frame: 1 MiB and its header
KEEPALIVE_MILLISECONDS: Final = 10_000

Options = list[tuple[str, int]]


def _shared(message_bytes_max: int) -> Options:
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def control_options() -> Options:
    """Of a channel that carries Session and unary calls."""
    return [*_shared(CONTROL_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1)]


def bulk_options() -> Options:
    """Of a channel that carries one Bulk stream, on a connection of its own."""
    return [*_shared(BULK_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1)]


def server_options() -> Options:
    """Of a shard's server. A port belongs to one process alone: a second one is told so."""
    return [
        *_shared(CONTROL_BYTES_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MILLISECONDS // 2),
        ("grpc.so_reuseport", 0),
    ]
