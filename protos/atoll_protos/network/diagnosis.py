"""Why a shard cannot be reached although something answers at its address, in one line.

gRPC tells a client whose connection breaks in the handshake no more than "Socket closed". So `look`
begins a TLS handshake of its own, which is believed for nothing else, and `judge` says what
follows from what it saw.
"""

import asyncio
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from atoll_protos.errors import SpecError
from atoll_protos.network.addresses import processes_of, split
from atoll_protos.network.credentials import Credentials, identity_of, vouches
from atoll_protos.network.identity import Identity

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

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


async def look(endpoint: str, credentials: Credentials | None) -> AnsweringPeer | None:
    """What answers at a shard's endpoint, in a few seconds; None if nothing does."""
    for address in processes_of(endpoint):
        if (seen := await _look(address, credentials)) is not None:
            return seen
    return None


async def _look(address: str, credentials: Credentials | None) -> AnsweringPeer | None:
    try:
        host, port = split(address)
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
    """The ssl module takes this process's certificate from files alone."""
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
