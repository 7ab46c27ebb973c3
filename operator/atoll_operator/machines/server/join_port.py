"""The service with which machines enter a job, and get a certificate again.

It answers from files, which others may change meanwhile. The same key has the same answer, so a
lost one costs nothing. A refusal is an answer, not an error of gRPC: it has a remedy.

Anybody may reach the port. An event loop holds the connections, and a call gets a thread only when
its whole message is here, so one whose message never comes holds up nobody. What a caller has sent
is made printable before it goes into words, files, or to other machines.

How often an address may be wrong, with a secret, a key, or the version of the protocol, bounds what
a stranger costs in answers and lines of the log; a secret is too long to be guessed. So whoever has
a right one is let in at once, also where others behind the same NAT have been wrong. An IPv6 host
has a whole /64.
"""

import asyncio
import ipaddress
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Final

import grpc
import grpc.aio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import Authority, request_digest
from atoll_operator.machines.bundle import Bundle
from atoll_operator.machines.server.register import (
    Book,
    EntryRequest,
    JobCertificates,
    Member,
    OpenSlots,
    RefusedSlot,
    Register,
    StrangerError,
    UnreadableError,
    enter,
    with_machine,
)
from atoll_protos.errors import SpecError, printable
from atoll_protos.names import PROTOCOL
from atoll_protos.network.addresses import split
from atoll_protos.network.channels import SMALL_BYTES_MAX, server_options
from atoll_protos.network.listening import raise_file_limit
from atoll_protos.v1.atoll_pb2_grpc import MachinesServicer, add_MachinesServicer_to_server

WRONG_MAX: Final = 10  # within the time below
WITHIN_SECONDS: Final = 60.0
ADDRESSES_MAX: Final = 1024  # the oldest is forgotten
PREFIX_BITS: Final = 64


class TooManyError(Exception):
    """This address has been wrong too often. It may again in a minute."""


@dataclass(slots=True)
class Attempts:
    """Of one port; for several threads. Times are monotonic seconds."""

    _wrong: dict[str, deque[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def failed(self, address: str, now: float) -> None:
        """Count one more. Raises TooManyError, where it is one too many."""
        with self._lock:
            network = network_of(address)
            recent = self._wrong.pop(network, None) or deque(maxlen=WRONG_MAX)
            self._wrong[network] = recent  # as the newest
            if len(self._wrong) > ADDRESSES_MAX:
                del self._wrong[next(iter(self._wrong))]
            if sum(now - at < WITHIN_SECONDS for at in recent) >= WRONG_MAX:
                raise TooManyError
            recent.append(now)


def network_of(address: str) -> str:
    """Of HOST:PORT: the host, of IPv6 its network."""
    try:
        host = ipaddress.ip_address(split(address)[0])
    except ValueError:
        return address
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    return str(host.ipv4_mapped or ipaddress.ip_network((host, PREFIX_BITS), strict=False))


CONNECTIONS_MAX: Final = 1000  # and at most half of the files that this process may open
CALLS_MAX: Final = 4  # of one connection; a machine has one
HANDSHAKE_SECONDS_MAX: Final = 5.0
IDLE_SECONDS_MAX: Final = 30.0
AGE_SECONDS_MAX: Final = 120.0  # a call whose message never comes ends with its connection
NAME_CHARACTERS_MAX: Final = 253  # of a host, as in DNS
PLACE_CHARACTERS_MAX: Final = 300
REPEAT_SECONDS: Final = 60.0  # until the same line is shown again
GRACE_SECONDS: Final = 1.0  # for calls that are open at the end
LINES_MAX: Final = 1024  # that are known; then all may be shown again


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPort(MachinesServicer):
    """The servicer. What is a function is asked anew each time."""

    book: Book
    certificates: JobCertificates
    offered: Callable[[], OpenSlots]
    run_file: Callable[[], str]
    bundle: Callable[[Member, str], Bundle]  # of a machine, and where its hosts meet
    failed: Callable[[], str]  # why the job has; empty: it has not
    say: Callable[[str], None]
    attempts: Attempts = field(default_factory=Attempts)
    _shown: dict[str, float] = field(default_factory=dict)  # when a line was shown last

    async def Enter(self, request: pb.EnterRequest, context: Any) -> pb.EnterReply:  # noqa: N802
        """In a thread, since it reads and writes files. What is wrong here is no refusal."""
        try:
            return await asyncio.to_thread(self._enter, request, _address(context.peer()))
        except TooManyError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wrong tokens")
        except (OSError, UnreadableError) as error:  # machines train on and ask again
            what = error.strerror if isinstance(error, OSError) else "its register cannot be read"
            await context.abort(grpc.StatusCode.INTERNAL, f"trouble on its machine ({what})")
        raise AssertionError("abort raises")

    def _enter(self, request: pb.EnterRequest, peer: str) -> pb.EnterReply:
        """Raise TooManyError in place of a refusal of a stranger too many."""
        try:
            _same_protocol(request.protocol, request.version)
            return self._entered(request, peer)
        except UnreadableError:
            raise
        except SpecError as error:
            if isinstance(error, StrangerError):
                self.attempts.failed(peer, time.monotonic())
            self._say_once(f"a machine at {_host(peer)} was refused: {error}")
            refusal = pb.MachineRefusal(
                field=error.field, problem=error.problem, remedy=error.remedy
            )
            return pb.EnterReply(refusal=refusal)

    def _entered(self, request: pb.EnterRequest, peer: str) -> pb.EnterReply:
        now, asked = time.time(), _entry_request(request)
        # Read before the slots are given: what cannot be read leaves them free.
        offered, run_file = self.offered(), self.run_file()

        def let_in(register: Register) -> tuple[Register, tuple[Member | None, Member, str]]:
            changed, machine = enter(register, asked, offered, now)
            new = self._as_it_is_now(machine, request, peer)
            changed = with_machine(changed, new)
            before = machine if machine in register.machines else None
            return changed, (before, new, changed.rendezvous(new.slots[0]))

        before, machine, meeting = self.book.change(let_in)
        self._say_what_is_new(before, machine, peer)
        if why := self.failed():
            raise SpecError("the job", f"has failed: {why}", "look at its server")
        return pb.EnterReply(
            bundle=self.bundle(machine, meeting).to_json(),
            run_file=run_file,
            certificate=machine.certificate.encode(),
            authorities=self.certificates.bundle(),
        )

    def _as_it_is_now(self, machine: Member, request: pb.EnterRequest, peer: str) -> Member:
        refused = {
            slot: printable(why, PLACE_CHARACTERS_MAX) for slot, why in request.refused.items()
        }
        own = (RefusedSlot(slot=x, why=refused[x]) for x in machine.slots if refused.get(x))
        first = machine.hosts > 1 and machine.host == 0
        said = printable(request.rendezvous, PLACE_CHARACTERS_MAX) if first else ""
        return replace(
            machine,
            certificate=self.certificates.of_machine(machine, request.request, time.time()),
            address=_host(peer),
            rendezvous=said or machine.rendezvous,
            refused=tuple(own),
        )

    def _say_what_is_new(self, before: Member | None, machine: Member, peer: str) -> None:
        name = machine.name
        if before is None:
            self.say(f"machine {name} has entered from {peer}: {machine.shown}")
            return
        if before.address != machine.address:
            moved = f"machine {name} asks from {machine.address} now, and did from {before.address}"
            self._say_once(f"{moved}; two with the same state would take each other's slots")
        if before.certificate != machine.certificate:
            self.say(f"machine {name} has a new certificate ({peer})")
        for refused in machine.refused:
            if refused not in before.refused:
                slot = f"{refused.slot} of machine {name}"
                self.say(f"{slot} is refused for good: {refused.why}")

    def _say_once(self, line: str) -> None:
        """Show the same line at most once a minute: a script tries again and again."""
        now = time.monotonic()
        if now - self._shown.get(line, float("-inf")) >= REPEAT_SECONDS:
            if len(self._shown) >= LINES_MAX:
                self._shown.clear()
            self._shown[line] = now
            self.say(line)


def _entry_request(request: pb.EnterRequest) -> EntryRequest:
    """Raise StrangerError for a request that is none."""
    try:
        digest = request_digest(request.request)
    except SpecError as error:
        raise StrangerError(error.field, error.problem, error.remedy) from error
    return EntryRequest(
        key_digest=digest,
        token=printable(request.token),
        secret=request.secret,
        region=printable(request.region),
        name=printable(request.name, NAME_CHARACTERS_MAX),
        learners=max(1, request.learners),
        hosts=request.hosts,
        host=request.host if request.HasField("host") else None,
        slot=printable(request.slot),
    )


@contextmanager
def opened(listen: str, anchor: Authority, servicer: JoinPort) -> Iterator[None]:
    """Listen inside, in a thread of its own. Raises SpecError for a port in use."""
    begun = Future[Callable[[], object]]()
    thread = threading.Thread(
        target=lambda: asyncio.run(_served(listen, anchor, servicer, begun)), name="join port"
    )
    thread.start()
    try:
        end = begun.result()
        try:
            yield
        finally:
            end()
    finally:
        thread.join()


async def _served(
    listen: str, anchor: Authority, servicer: JoinPort, begun: "Future[Callable[[], object]]"
) -> None:
    """`begun` gets what ends it, or why it cannot listen."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    try:
        server = await _begun(listen, anchor, servicer)
    except Exception as error:
        begun.set_exception(error)
        return
    begun.set_result(lambda: loop.call_soon_threadsafe(over.set))
    await over.wait()
    await server.stop(GRACE_SECONDS)


async def _begun(listen: str, anchor: Authority, servicer: JoinPort) -> grpc.aio.Server:
    options = server_options(
        SMALL_BYTES_MAX,
        connections=min(CONNECTIONS_MAX, raise_file_limit() // 2),
        streams=CALLS_MAX,
        handshake_seconds=HANDSHAKE_SECONDS_MAX,
        idle_seconds=IDLE_SECONDS_MAX,
        age_seconds=AGE_SECONDS_MAX,
    )
    server = grpc.aio.server(options=options)
    add_MachinesServicer_to_server(servicer, server)
    credentials = grpc.ssl_server_credentials([(anchor.key, anchor.certificate)])
    try:
        server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        remedy = "free the port or give another one"
        raise SpecError("--listen", f"{listen} cannot be bound", remedy) from error
    await server.start()
    return server


def _same_protocol(protocol: int, theirs: str) -> None:
    if protocol != PROTOCOL:
        theirs, ours = printable(theirs), version("atoll")
        mine = f"this machine has protocol {protocol} (Atoll {theirs})"
        problem = f"{mine}, and the server has {PROTOCOL} (Atoll {ours})"
        raise StrangerError("atoll", problem, "install the same version on both")


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _address(peer: str) -> str:
    """gRPC's ipv4:10.0.0.2:4711 without the first word."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]") or "this machine"
