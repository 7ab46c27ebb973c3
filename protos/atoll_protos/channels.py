"""gRPC options that both ends share, and the names of the bulk stream.

A learner has two channels to each shard, on TCP connections of their own: one for `Session` and
unary calls, one for `Bulk`. On one shared connection a transfer of many megabytes would hold up
the ticks and Calls behind it. Keepalive pings find a peer that is gone without a word within
20 s. `grpc.use_local_subchannel_pool` stops gRPC from sharing one connection between channels.
"""

from typing import Final

BULK_METHOD: Final = "/atoll_protos.v1.Syncer/Bulk"
SESSION_METADATA: Final = "atoll-session"
SECRET_METADATA: Final = "atoll-secret"

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
    """Options of a channel that carries Session and unary calls."""
    return [*_shared(CONTROL_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1)]


def bulk_options() -> Options:
    """Options of a channel that carries one Bulk stream, on a connection of its own."""
    return [*_shared(BULK_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1)]


def server_options() -> Options:
    """Options of a shard's server.

    Without port reuse a second process on the same port gets an error, instead of half the calls.
    """
    return [
        *_shared(CONTROL_BYTES_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MILLISECONDS // 2),
        ("grpc.so_reuseport", 0),
    ]
