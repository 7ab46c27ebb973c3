"""The service with which machines enter a job, renew their certificates and watch it.

With other tokens people look at the job, and change it.

It answers from files, which others may change meanwhile, and from what the passes of the run have
told last. A refusal is an answer, not an error of gRPC: it has a remedy.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import Authority
from atoll_operator.machines.server.attempts import Attempts, TooManyError
from atoll_operator.machines.server.changing import RunFolder
from atoll_operator.machines.server.job_certificates import JobCertificates
from atoll_operator.machines.server.job_now import Heard, JobNow
from atoll_operator.machines.server.looking import LOOKERS_MAX, Looking
from atoll_operator.machines.server.register import (
    Book,
    EntryRequest,
    May,
    Member,
    OpenSlots,
    UnknownNameError,
    UnreadableError,
    WrongSecretError,
    allowed,
    enter,
    known,
)
from atoll_operator.machines.token import hash_of, new_secret
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.names import PROTOCOL
from atoll_protos.network.channels import server_options
from atoll_protos.network.identity import Identity, Role
from atoll_protos.network.services import Service, add_handlers

THREADS: Final = 8 + LOOKERS_MAX
PLACE_CHARACTERS_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPort:
    """The servicer. `offered`, `run_file`, `container` and `length` are asked anew each time."""

    job: str
    book: Book
    certificates: JobCertificates
    now: JobNow
    endpoints: tuple[str, ...]
    offered: Callable[[], OpenSlots]
    run_file: Callable[[], str]
    container: Callable[[str], str]  # of a region
    steps: Callable[[], int]
    hosts_needed: Callable[[int], int]  # of so many, to train
    say: Callable[[str], None]
    looking: Looking
    clock: Callable[[], float] = time.time
    attempts: Attempts = field(default_factory=Attempts)

    def Enter(self, request: pb.EnterRequest, context: Any) -> pb.EnterReply:  # noqa: N802
        try:
            _same_protocol(request.protocol, request.version)
            with self._limited(request.token, context):
                return self._entered(request, context.peer())
        except SpecError as error:
            self.say(f"a machine at {_host(context)} was refused: {error}")
            return pb.EnterReply(refusal=_refusal(error))

    def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:  # noqa: N802
        try:
            machine = self._machine(request, context)
            found = self._signed(machine, request.request)
        except SpecError as error:
            return pb.RenewReply(refusal=_refusal(error))
        self.say(f"machine {machine.name} has a new certificate ({_host(context)})")
        return pb.RenewReply(certificate=found[0], authorities=found[1])

    def Watch(self, request: pb.WatchRequest, context: Any) -> pb.WatchReply:  # noqa: N802
        try:
            _same_protocol(request.protocol, request.version)
            machine = self._machine(request, context)
        except SpecError as error:
            return pb.WatchReply(refusal=_refusal(error))
        if machine.hosts > 1 and machine.host == 0:
            self.now.meetings[machine.slots[0]] = request.rendezvous[:PLACE_CHARACTERS_MAX]
        return self._watched(machine, context.peer(), request.round_trip_seconds)

    def Look(self, request: pb.LookRequest, context: Any) -> Iterator[pb.LookReply]:  # noqa: N802
        try:
            self._allowed(request, May.LOOK, context)
            again = partial(self._allowed, request, May.LOOK, context)
            yield from self.looking.replies(request, context, again)
        except AwayError as error:
            context.abort(grpc.StatusCode.ABORTED, error.problem)
        except SpecError as error:
            yield pb.LookReply(refusal=_refusal(error))

    def Change(self, request: pb.ChangeRequest, context: Any) -> pb.ChangeReply:  # noqa: N802
        try:
            self._allowed(request, May.EDIT, context)
            with _own_trouble(context):
                lines = changed(RunFolder(self.looking.out, self.job), request)
        except SpecError as error:
            return pb.ChangeReply(refusal=_refusal(error))
        name = pb.Decision.Name(request.decision).removeprefix("DECISION_").lower()
        said = "; ".join(lines) or name
        self.say(f"by token {request.token}, from {_host(context)}: {said}")
        return pb.ChangeReply(lines=lines)

    @contextmanager
    def _limited(self, name: str, context: Any) -> Iterator[None]:
        """Counts wrong secrets, and hangs up where there are too many."""
        address, now = _host(context), time.monotonic()
        try:
            self.attempts.check(address, name, now)
            try:
                with _own_trouble(context):
                    yield
            except WrongSecretError as error:
                nobody = isinstance(error, UnknownNameError)
                self.attempts.failed(address, "" if nobody else name, now)
                raise
        except TooManyError:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wrong tokens")

    def _machine(self, request: pb.RenewRequest | pb.WatchRequest, context: Any) -> Member:
        with self._limited(request.name, context):
            return known(self.book.read(), request.name, request.secret)

    def _allowed(self, request: pb.LookRequest | pb.ChangeRequest, may: May, context: Any) -> None:
        _same_protocol(request.protocol, request.version)
        with self._limited(request.token, context):
            allowed(self.book.read(), request.token, request.secret, may, self.clock())

    def _entered(self, request: pb.EnterRequest, peer: str) -> pb.EnterReply:
        secret, now = new_secret(), self.clock()
        asked = EntryRequest(
            token=request.token,
            secret=request.secret,
            region=request.region,
            name=request.name,
            learners=max(1, request.learners),
            hosts=request.hosts,
            host=request.host if request.HasField("host") else None,
            slot=request.slot,
        )
        # Read before the slots are given: what cannot be read leaves them free.
        offered, run_file = self.offered(), self.run_file()

        def let_in(register: Any) -> tuple[Any, tuple[Member, bytes, bytes]]:
            changed, machine = enter(register, asked, offered, hash_of(secret), now)
            return changed, (machine, *self._signed(machine, request.request))

        machine, certificate, authorities = self.book.change(let_in)
        self.say(f"machine {machine.name} has entered from {_address(peer)}: {machine.shown}")
        return pb.EnterReply(
            name=machine.name,
            secret=secret,
            region=machine.region,
            slots=machine.slots,
            certificate=certificate,
            authorities=authorities,
            run_file=run_file,
            container=self.container(machine.region),
            watch=self._watched(machine, peer, 0.0),
            job=self.job,
            hosts=machine.hosts,
            hosts_min=self.hosts_needed(machine.hosts),
        )

    def _signed(self, machine: Member, request: bytes) -> tuple[bytes, bytes]:
        owner = self.certificates.owner
        identity = Identity(
            namespace=owner.namespace,
            job=owner.job,
            uid=owner.uid,
            region=machine.region,
            role=Role.LEARNER,
            machine=machine.name,
        )
        return self.certificates.sign(identity, request, self.clock())

    def _watched(self, machine: Member, peer: str, round_trip_seconds: float) -> pb.WatchReply:
        heard = Heard(
            at=self.clock(),
            address=_address(peer).rpartition(":")[0].strip("[]"),
            round_trip_seconds=round_trip_seconds,
        )
        state, tick, why = self.now.heard(machine.name, heard)
        several = machine.hosts > 1
        return pb.WatchReply(
            state=state,  # type: ignore[arg-type]
            why=why,
            tick=tick,
            endpoints=self.endpoints,
            authorities_digest=digest_of_bundle(self.certificates.bundle()),
            length=self.steps(),
            rendezvous=self.now.meetings.get(machine.slots[0], "") if several else "",
        )


@contextmanager
def _own_trouble(context: Any) -> Iterator[None]:
    """What is wrong here, such as a full disk, is no refusal: machines train on and ask again."""
    try:
        yield
    except (OSError, UnreadableError) as error:
        what = error.strerror if isinstance(error, OSError) else "its register cannot be read"
        context.abort(grpc.StatusCode.INTERNAL, f"trouble on its machine ({what})")


def open_port(listen: str, anchor: Authority, servicer: JoinPort) -> grpc.Server:
    """Listens; raises SpecError for a port in use."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=server_options())
    add_handlers(Service.MACHINES, servicer, server)
    credentials = grpc.ssl_server_credentials([(anchor.key, anchor.certificate)])
    try:
        server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        remedy = "free the port or give another one"
        raise SpecError("--listen", f"{listen} cannot be bound", remedy) from error
    server.start()
    return server


def changed(run: RunFolder, asked: pb.ChangeRequest) -> list[str]:
    """What is another now, in words. Raises SpecError."""
    match asked.decision:
        case pb.DECISION_EDIT:
            steps = asked.steps if asked.HasField("steps") else None
            tokens = asked.tokens if asked.HasField("tokens") else None
            return run.edit(asked.learners, steps, tokens)
        case pb.DECISION_STOP:
            return run.stop()
        case pb.DECISION_SUSPEND | pb.DECISION_RESUME:
            run.suspend(asked.decision == pb.DECISION_SUSPEND)
        case pb.DECISION_CHECKPOINT:
            run.ask_checkpoint(asked.checkpoint_step)
        case _:
            problem = "the server does not know what is to be done"
            raise SpecError("atoll", problem, "install the same version on both")
    return []


def digest_of_bundle(bundle: bytes) -> str:
    return hashlib.sha256(bundle).hexdigest()


def _same_protocol(protocol: int, theirs: str) -> None:
    if protocol != PROTOCOL:
        mine = f"this machine has protocol {protocol} (Atoll {theirs})"
        problem = f"{mine}, and the server has {PROTOCOL} (Atoll {version('atoll')})"
        raise SpecError("atoll", problem, "install the same version on both")


def _refusal(error: SpecError) -> pb.MachineRefusal:
    return pb.MachineRefusal(field=error.field, problem=error.problem, remedy=error.remedy)


def _host(context: Any) -> str:
    return _address(context.peer())


def _address(peer: str) -> str:
    """gRPC's ipv4:10.0.0.2:4711 without the first word."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]") or "this machine"
