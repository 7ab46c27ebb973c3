"""gRPC channels and servers as both ends make them, and the names of the bulk stream.

A learner has two channels to each shard, on TCP connections of their own, else a transfer would
hold up the ticks and Calls behind it; `grpc.use_local_subchannel_pool` stops gRPC from sharing one.
Keepalive pings find a peer that is gone without a word within 20 s.

With credentials both ends prove who they are (mutual TLS). A client verifies the one name under
which the job's shards serve, whatever address it dials. Files are read again for each dial, and by
a server for each handshake: renewed ones take effect with the next connection and drop none.

gRPC reports a connection that breaks in the handshake as "Socket closed" alone. So `probe` begins a
TLS handshake of its own, which is believed for nothing else, and `judge` derives the reason.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import structlog

from atoll_protos.errors import SENTENCE_LETTERS_MAX, SpecError, printable
from atoll_protos.network.addresses import split
from atoll_protos.network.credentials import (
    ANY,
    Credentials,
    Identity,
    Needed,
    OutOfDateError,
    identity_of,
    vouches,
)

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


BULK_METHOD: Final = "/atoll_protos.v1.Syncer/Bulk"
SESSION_METADATA: Final = "atoll-session"
SECRET_METADATA: Final = "atoll-secret"
LANE_METADATA: Final = "atoll-lane"  # from 0; absent where the session has one

CONTROL_BYTES_MAX: Final = 16 << 20  # the tensor table of a model with layout.TENSORS_MAX tensors
SMALL_BYTES_MAX: Final = 64 << 10  # where no table and no values come
BULK_BYTES_MAX: Final = 2 << 20  # one frame: 1 MiB and its header
KEEPALIVE_MILLISECONDS: Final = 10_000
ATTEMPT_SECONDS: Final = 4.0  # to connect to one address
AGE_GRACE_SECONDS: Final = 10.0
HANDSHAKES_SECONDS: Final = 60.0
HANDSHAKES_MANY: Final = 100  # more than the learners of most jobs begin in that time
NEVER: Final = float("inf")

TARGET_NAME: Final = "grpc.ssl_target_name_override"

Options = list[tuple[str, int]]

log = structlog.get_logger()


def _shared(received_bytes_max: int, sent_bytes_max: int) -> Options:
    return [
        ("grpc.max_receive_message_length", received_bytes_max),
        ("grpc.max_send_message_length", sent_bytes_max),
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
        *_shared(CONTROL_BYTES_MAX, CONTROL_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", round(1000 * attempt_seconds)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", round(500 * attempt_seconds)),
    ]


def details_of(error: Any) -> str:
    """Return a peer's reason for its refusal, an error of gRPC."""
    return printable(str(error.details()), SENTENCE_LETTERS_MAX)


def bulk_options() -> Options:
    return [*_shared(BULK_BYTES_MAX, BULK_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1)]


def server_options(
    received_bytes_max: int = CONTROL_BYTES_MAX,
    *,
    connections: int = 1000,
    streams: int = 100,
    handshake_seconds: float = 10.0,
    idle_seconds: float = NEVER,
    age_seconds: float = NEVER,
) -> Options:
    """Limit what one port takes of peers before it knows them; any may be a stranger.

    A message of more than `received_bytes_max` is refused (RESOURCE_EXHAUSTED) before a function
    sees it. One connection more than `connections` is closed at once; each is an open file, and
    the process needs others. Within `handshake_seconds` a peer must have begun HTTP/2, inside of
    TLS where there is TLS. Of calls that are open at once a connection has `streams`; further ones
    wait at the client. It ends after `idle_seconds` without a call, and after `age_seconds` in any
    case, AGE_GRACE_SECONDS later with the calls on it: also with those whose message never comes.

    Without port reuse a second process on a port gets an error, not half the calls.
    """
    seconds = {
        "grpc.server_handshake_timeout_ms": handshake_seconds,
        "grpc.max_connection_idle_ms": idle_seconds,
        "grpc.max_connection_age_ms": age_seconds,
        "grpc.max_connection_age_grace_ms": AGE_GRACE_SECONDS,
    }
    # A window that grows by probes would hold megabytes of a message that is refused.
    steady = [("grpc.http2.bdp_probe", 0)] if received_bytes_max <= SMALL_BYTES_MAX else []
    return [
        *steady,
        *_shared(received_bytes_max, CONTROL_BYTES_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MILLISECONDS // 2),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", streams),
        *((name, round(1000 * each)) for name, each in seconds.items() if each < NEVER),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where a process's credentials lie, and what they have to be; `path` is empty for none."""

    path: str
    needed: Needed = ANY
    clock: Callable[[], float] = time.time

    def read(self) -> Credentials | None:
        """Read and check; None: plain text. Raises CredentialsError, or OutOfDateError (heals)."""
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
    """Open the same to a shard, for threads."""
    channel: grpc.Channel = _opened(grpc, endpoint, options, credentials, "")
    return channel


def _opened(
    module: Any, endpoint: str, options: Options, credentials: Credentials | None, name: str
) -> Any:
    if credentials is None:
        return module.insecure_channel(endpoint, options=options)
    return module.secure_channel(
        endpoint,
        grpc.ssl_channel_credentials(
            credentials.authority, credentials.key, credentials.certificate
        ),
        options=[*options, (TARGET_NAME, name or credentials.identity.server_name)],
    )


class ServerFiles:
    """A server's credentials, read for each handshake; while that fails the last good ones stay."""

    def __init__(self, folder: Folder, first: Credentials) -> None:
        self._folder, self._used, self._said = folder, first, ""
        self._handshakes, self._counted_from = 0, time.monotonic()

    def credentials(self) -> Any:
        """For a secure port: both ends have to show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._used), self.fetch, require_client_authentication=True
        )

    def fetch(self) -> Any:
        """Return new ones, or None while those in use are still the ones; in a thread of gRPC's."""
        self._count()
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

    def _count(self) -> None:
        """Log a line a minute in place of gRPC's own for each handshake that fails."""
        self._handshakes += 1
        seconds = time.monotonic() - self._counted_from
        if seconds < HANDSHAKES_SECONDS:
            return
        if self._handshakes > HANDSHAKES_MANY:
            log.warning("many handshakes", begun=self._handshakes, seconds=round(seconds))
        self._handshakes, self._counted_from = 0, time.monotonic()

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


LOOK_SECONDS_MAX: Final = 5.0
WORD_SECONDS_MAX: Final = 1.0  # for a server that takes this process's certificate to speak
PLAIN: Final = "WRONG_VERSION_NUMBER"  # OpenSSL's word for an answer that is no TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringPeer:
    """What answers: plain text, or TLS with a certificate (DER). `spoke`: after it saw ours."""

    certificate: bytes | None
    spoke: bool = False


class RefusedError(Exception):
    """The shard and this process do not take each other, for now."""


class OtherRunError(RefusedError):
    """The shard is one of another run of the job."""


class MismatchError(SpecError):
    """The shard and this process will not take each other until one of them is set up again."""


async def probe(endpoint: str, credentials: Credentials | None) -> AnsweringPeer | None:
    """Return what answers at a shard's endpoint, in a few seconds; None if nothing does."""
    try:
        host, port = split(endpoint)
    except ValueError:
        return None  # a form of gRPC's own
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # looked at, never believed
    context.set_alpn_protocols(["h2"])
    name = host
    if credentials is not None:
        name = credentials.identity.server_name
        _show(context, credentials)
    try:
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname=name
            )
    except ssl.SSLError as error:
        return AnsweringPeer(certificate=None) if error.reason == PLAIN else None
    except (OSError, TimeoutError, ValueError):
        return None
    try:
        tls = writer.get_extra_info("ssl_object")
        return AnsweringPeer(
            certificate=tls.getpeercert(binary_form=True), spoke=await _speaks(reader)
        )
    finally:
        writer.transport.abort()


def _show(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Load this process's certificate, which the ssl module takes from files alone."""
    both = os.memfd_create("credentials")
    try:
        os.write(both, credentials.certificate + b"\n" + credentials.key)
        context.load_cert_chain(f"/proc/self/fd/{both}")
    finally:
        os.close(both)


async def _speaks(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(WORD_SECONDS_MAX):
            return bool(await reader.read(1))
    except TimeoutError:
        return True  # it has not closed
    except (OSError, ssl.SSLError):
        return False


def judge(
    seen: AnsweringPeer | None, credentials: Credentials | None, now: float
) -> Exception | None:
    """Why the two do not take each other, as an error to be raised; None if that is not it."""
    if seen is None:
        return None
    if seen.certificate is None:
        if credentials is None:
            return None
        return RefusedError(
            "it serves plain text, and this process has credentials; start the shard with"
            " credentials of its own, or this process without ATOLL_TLS_DIR"
        )
    if credentials is None:
        return MismatchError(
            "ATOLL_TLS_DIR",
            "the shard serves TLS alone, and this process has no credentials",
            "set it to the folder with this process's credentials",
        )
    from cryptography import x509

    return _of_certificate(x509.load_der_x509_certificate(seen.certificate), credentials, now) or (
        None
        if seen.spoke
        else RefusedError(
            f"it does not take this process's certificate, of {credentials.identity}: either it"
            " believes other authorities, or the certificate is not in date by its clock; give"
            " this process the credentials of the present run, and set all clocks to one time"
        )
    )


def _of_certificate(
    certificate: "Certificate", credentials: Credentials, now: float
) -> Exception | None:
    mine, theirs = credentials.identity, _identity(certificate)
    if theirs is not None and (theirs.namespace, theirs.job) != (mine.namespace, mine.job):
        return MismatchError(
            "credentials",
            f"the shard has those of {theirs}, and this process those of {mine}",
            "give this process the credentials of its job, or the endpoints of its shards",
        )
    if theirs is not None and theirs.uid != mine.uid:
        return OtherRunError(
            f"it has credentials of another run, {theirs}, and this process those of {mine}; give"
            " this process the credentials of the present run"
        )
    if not vouches(credentials.authority, certificate):
        return RefusedError(
            f"its certificate, of {theirs or 'nobody that is known'}, was not issued by an"
            " authority in this process's ca.crt; give both the credentials of the present run"
        )
    end = certificate.not_valid_after_utc
    if now > end.timestamp():
        return RefusedError(f"its certificate expired at {end:%Y-%m-%d %H:%M:%S} UTC")
    return None


def _identity(certificate: "Certificate") -> Identity | None:
    try:
        return identity_of(certificate)
    except SpecError:
        return None


class Deadline:
    """`wait` returns once the clock has reached `when()`, which may change at any time.

    Call `moved` after what may have brought it forward; one that has moved back costs a look at the
    old time. Both are seconds of `clock`, which must run like the event loop's own.
    """

    def __init__(self, clock: Callable[[], float], when: Callable[[], float]) -> None:
        self._clock, self._when = clock, when
        self._looks_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    def moved(self) -> None:
        when = self._when()
        if self._waiter is None or when >= self._looks_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, when - self._clock()), self._look)

    async def wait(self) -> None:
        """For one task."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            self.moved()
            await self._waiter
        finally:
            self._waiter = None
            self._looks_at = float("inf")
            if self._timer is not None:
                self._timer.cancel()

    def _look(self) -> None:
        self._looks_at = float("inf")
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._when() <= self._clock():
            waiter.set_result(None)
        else:
            self.moved()
