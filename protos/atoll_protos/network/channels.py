"""gRPC channels and servers as both ends make them, and the names of the bulk stream.

A learner has two channels to each shard, on TCP connections of their own, else a transfer would
hold up the ticks and Calls behind it; `grpc.use_local_subchannel_pool` stops gRPC from sharing one.
Keepalive pings find a peer that is gone without a word within 20 s.

With credentials both ends prove who they are (mutual TLS). A client verifies the one name under
which the job's shards serve, whatever address it dials. Files are read again for each dial, and by
a server for each handshake: renewed ones take effect with the next connection and drop none.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from atoll_protos.errors import SpecError
from atoll_protos.network.addresses import target
from atoll_protos.network.credentials import ANY, Credentials, Needed, OutOfDateError

BULK_METHOD: Final = "/atoll_protos.v1.Syncer/Bulk"
SESSION_METADATA: Final = "atoll-session"
SECRET_METADATA: Final = "atoll-secret"
LANE_METADATA: Final = "atoll-lane"  # from 0; absent where the session has one

CONTROL_BYTES_MAX: Final = 16 << 20  # the tensor table of a model with layout.TENSORS_MAX tensors
BULK_BYTES_MAX: Final = 2 << 20  # one frame: 1 MiB and its header
KEEPALIVE_MILLISECONDS: Final = 10_000
ATTEMPT_SECONDS: Final = 4.0  # to connect to one address

TARGET_NAME: Final = "grpc.ssl_target_name_override"

Options = list[tuple[str, int]]

log = structlog.get_logger()


def _shared(message_bytes_max: int) -> Options:
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def control_options(attempt_seconds: float = ATTEMPT_SECONDS) -> Options:
    """Dial a lost peer again after 0.2 s, and no later than after half of the time of an attempt.

    By gRPC's defaults it would be 1 to 120 s, in which all calls fail. Of several addresses none
    that has refused is tried again before all have failed once. One whose node is gone, or whose
    process stands, fails after `attempt_seconds`. gRPC takes them from the least back-off (else
    20 s), and its back-off itself does not wait so long.
    """
    return [
        *_shared(CONTROL_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", round(1000 * attempt_seconds)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", round(500 * attempt_seconds)),
    ]


def bulk_options() -> Options:
    return [*_shared(BULK_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1)]


def server_options() -> Options:
    """Without port reuse a second process on a port gets an error, not half the calls."""
    return [
        *_shared(CONTROL_BYTES_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MILLISECONDS // 2),
        ("grpc.so_reuseport", 0),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where a process's credentials lie, and what they have to be; `path` is empty for none."""

    path: str
    needed: Needed = ANY
    clock: Callable[[], float] = time.time

    def read(self) -> Credentials | None:
        """Checked; None: plain text. Raises CredentialsError, or OutOfDateError for what heals."""
        if not self.path:
            return None
        found = Credentials.read(self.path)
        found.check(self.clock(), self.needed)
        return found


PLAIN_TEXT: Final = Folder(path="")


def open_channel(
    endpoint: str, options: Options, credentials: Credentials | None = None, name: str = ""
) -> grpc.aio.Channel:
    """In the event loop; plain text without credentials. `name`: of a server that is no shard."""
    channel: grpc.aio.Channel = _opened(grpc.aio, endpoint, options, credentials, name)
    return channel


def open_blocking_channel(
    endpoint: str, options: Options, credentials: Credentials | None = None
) -> grpc.Channel:
    """The same to a shard, for threads."""
    channel: grpc.Channel = _opened(grpc, endpoint, options, credentials, "")
    return channel


def _opened(
    module: Any, endpoint: str, options: Options, credentials: Credentials | None, name: str
) -> Any:
    if credentials is None:
        return module.insecure_channel(target(endpoint), options=options)
    return module.secure_channel(
        target(endpoint),
        grpc.ssl_channel_credentials(
            credentials.authority, credentials.key, credentials.certificate
        ),
        options=[*options, (TARGET_NAME, name or credentials.identity.server_name)],
    )


class ServerFiles:
    """A server's credentials, read for each handshake; while that fails the last good ones stay."""

    def __init__(self, folder: Folder, first: Credentials) -> None:
        self._folder, self._used, self._said = folder, first, ""

    def credentials(self) -> Any:
        """For a secure port: both ends have to show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._used), self.fetch, require_client_authentication=True
        )

    def fetch(self) -> Any:
        """New ones, or None while those in use are still the ones; in a thread of gRPC's."""
        try:
            found = self._folder.read()
        except (SpecError, OutOfDateError) as error:
            if str(error) != self._said:
                log.warning("credentials cannot be used, the former ones stay", reason=str(error))
            self._said = str(error)
            return None
        self._said = ""
        if found is None or found == self._used:
            return None
        self._used = found
        log.info("credentials renewed", identity=str(found.identity))
        return _configuration(found)

    def expiry(self) -> float:
        """When the certificate of the next handshake expires, in UNIX seconds."""
        try:
            found = self._folder.read()
        except (SpecError, OutOfDateError):
            found = None
        return (found or self._used).not_after


def _configuration(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.certificate)], credentials.authority
    )
