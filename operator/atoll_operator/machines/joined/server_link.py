"""Proves the server before anything is said to it, and speaks to it.

The certificate that answers is fetched without trust and compared with the digest of the token.
Only then does gRPC dial, with that certificate as its only root, so nobody between the two can read
a secret or answer for the server.
"""

import socket
import ssl
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.machines.bundle import SERVER_NAME, digest_of
from atoll_protos.errors import SENTENCE_LETTERS_MAX, AwayError, SpecError, printable
from atoll_protos.names import PROTOCOL
from atoll_protos.network.addresses import split
from atoll_protos.network.channels import TARGET_NAME, control_options
from atoll_protos.v1.atoll_pb2_grpc import MachinesStub

CALL_SECONDS_MAX: Final = 10.0
DIAL_SECONDS_MAX: Final = 10.0
PLAIN: Final = "WRONG_VERSION_NUMBER"  # OpenSSL's word for an answer that is no TLS
CHECK: Final = "check the address, that `atoll serve` runs there, and the firewalls between"
WHOSE: Final = "give the port of joining, which `atoll serve` prints, with a token of that job"


@dataclass(frozen=True, slots=True)
class ServerLink:
    """A proved server: `place` is HOST:PORT, `anchor` its certificate (PEM)."""

    place: str
    anchor: str

    @property
    def digest(self) -> str:
        return digest_of(ssl.PEM_cert_to_DER_cert(self.anchor))

    def enter(self, request: pb.EnterRequest) -> pb.EnterReply:
        """Raise AwayError, and SpecError for a refusal."""
        request.protocol, request.version = PROTOCOL, version("atoll")
        credentials = grpc.ssl_channel_credentials(self.anchor.encode())
        options = [*control_options(), (TARGET_NAME, SERVER_NAME)]
        with grpc.secure_channel(self.place, credentials, options=options) as channel:
            try:
                grpc.channel_ready_future(channel).result(CALL_SECONDS_MAX)
                call = MachinesStub(channel).Enter
                reply: pb.EnterReply = call(request, timeout=CALL_SECONDS_MAX)
            except grpc.FutureTimeoutError as error:
                raise AwayError(self.place, "does not answer", CHECK) from error
            except grpc.RpcError as error:
                raise _error(self.place, error) from error
        if reply.HasField("refusal"):
            raise _refused(reply.refusal)
        return reply


def proved(place: str, digest: str) -> ServerLink:
    """Return the server at a place, whose certificate has this digest. Raises SpecError."""
    link = link_to(place)
    if link.digest != digest:
        problem = f"{place} is not the server of the token: it has another certificate"
        raise SpecError("--token", problem, WHOSE)
    return link


def link_to(place: str) -> ServerLink:
    """Return what answers there, believed for nothing: only its `digest` may be looked at yet."""
    return ServerLink(place, ssl.DER_cert_to_PEM_cert(certificate_at(place)))


def certificate_at(place: str) -> bytes:
    """Fetch the certificate (DER) of what answers, believed for nothing. Raises SpecError."""
    try:
        host, port = split(place)
    except ValueError as error:
        raise SpecError("HOST:PORT", str(error), "give it as `atoll serve` prints it") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), DIAL_SECONDS_MAX) as plain:
            return _shown(context, plain, place)
    except (OSError, UnicodeError) as error:  # a name that does not resolve, or that is none
        problem = f"nothing answers ({getattr(error, 'strerror', '') or error})"
        raise AwayError(place, problem, CHECK) from error


def _shown(context: ssl.SSLContext, plain: socket.socket, place: str) -> bytes:
    try:
        with context.wrap_socket(plain, server_hostname=SERVER_NAME) as tls:
            return tls.getpeercert(binary_form=True) or b""
    except TimeoutError as error:
        problem = f"something listens, and has said nothing for {DIAL_SECONDS_MAX:.0f} s"
        raise SpecError(place, f"{problem}: it is no `atoll serve`", WHOSE) from error
    except ssl.SSLError as error:
        how = "in plain text" if error.reason == PLAIN else "otherwise than with TLS"
        raise SpecError(place, f"it answers {how}: it is no `atoll serve`", WHOSE) from error
    except OSError as error:
        raise SpecError(place, "it hangs up: it is no `atoll serve`", WHOSE) from error


def _sentence(text: str) -> str:
    return printable(text, SENTENCE_LETTERS_MAX)


def _refused(refusal: pb.MachineRefusal) -> SpecError:
    field, problem = printable(refusal.field), _sentence(refusal.problem)
    return SpecError(field, problem, _sentence(refusal.remedy))


def _error(place: str, error: grpc.RpcError) -> Exception:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        mine = f"this machine has Atoll {version('atoll')}"
        problem = f"{place} does not know this call, and {mine}"
        return SpecError("atoll", problem, "install the same version on both")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return AwayError(place, "has had too many wrong tokens from here", "wait a minute")
    if code is grpc.StatusCode.INTERNAL:
        return AwayError(place, f"cannot do this now: {_sentence(error.details())}", "try again")
    return AwayError(place, f"does not answer: {code.name if code else error}", CHECK)
