"""The machine of `atoll serve`: its ports, certificates, tokens, and the rows of its machines.

What makes `atoll serve` the same server after a restart: the folder `machines` of its run,
for this user alone.

server.json      the job's UID and the ports
join.json        the certificate of the join port with its key: every token has its digest
authority.json   the job's authorities with their keys
register.json    tokens, without their secrets, and machines with their slots
tls/             the credentials of the processes of this machine
"""

import dataclasses
import errno
import json
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.job_status import GONE
from atoll_operator.authority.job_authority import DAY_SECONDS, Authority, make_anchor
from atoll_operator.local.atoll_run import Elsewhere
from atoll_operator.local.local_status import (
    MACHINES_FILE,
    Ends,
    MachinesFile,
    MachineTraffic,
    Moved,
    RunSnapshot,
    ShownMachine,
    moved_by_machines,
    to_json,
)
from atoll_operator.local.process_plan import Planned, container_elsewhere, endpoints_at
from atoll_operator.local.run_files import (
    CREDENTIALS_FOLDER,
    MACHINES_FOLDER,
    OBSERVER_FOLDER,
    RUN_FILE,
    SLOTS_FILE,
    Files,
    read_tapes,
    shown,
)
from atoll_operator.machines.bundle import (
    SERVER_NAME,
    Bundle,
    Token,
    digest_of,
    hash_of,
    make_private,
    write_private,
)
from atoll_operator.machines.server.join_port import JoinPort, opened
from atoll_operator.machines.server.register import (
    Book,
    Granted,
    JobCertificates,
    Member,
    OpenSlots,
    Register,
    UnreadableError,
    free_places,
    identity_of,
    keeps_slots,
    valid,
    with_token,
)
from atoll_protos import documents
from atoll_protos.documents import parse
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Expected, ListedMachine
from atoll_protos.names import slot_name, split_slot
from atoll_protos.network.addresses import PORT_MAX, joined, split
from atoll_protos.network.credentials import JobIdentity, Role
from atoll_protos.network.listening import EVERYWHERE, listening_socket, own_address

NAMESPACE: Final = "machines"  # of the identities: no cluster has the object of the job
SERVER_FILE: Final = "server.json"
ANCHOR_FILE: Final = "join.json"
ANCHOR_DAYS: Final = 3650
PORT: Final = 7700
DAY_HOURS: Final = 24.0
# Addresses of documentation (RFC 5737 and 3849): asking the kernel for a route sends nothing.
NOWHERE: Final = ("192.0.2.1", "2001:db8::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFile:
    """`port` is that of joining, `ports` those of the shards as `endpoints_at` takes them.

    `host` and `advertise` are what the flags said last, `here` the regions with learners
    on this machine, `place` HOST:PORT as it was printed, and `invitation` the token with it.
    """

    uid: str
    port: int
    ports: tuple[int, ...]
    host: str = ""
    advertise: str = ""
    here: tuple[str, ...] = ()
    place: str = ""
    invitation: str = ""


def server_file(
    folder: Path,
    job: Job,
    listen: str,
    advertise: str,
    here: Sequence[str],
) -> ServerFile:
    """As it is in the folder, changed by flags that are given; else new. Raises SpecError."""
    host, port = address("--listen", listen, 0)
    path = folder / SERVER_FILE
    count = job.spec.syncer.shards
    if path.exists():
        had = read_server(folder)
        if len(had.ports) != count:
            problem = f"the shards have {len(had.ports)} ports in {path}, and {count} are needed"
            remedy = "start with the number of shards that the job began with"
            raise SpecError("spec.syncer", problem, remedy)
        host, port = (host, port or had.port) if listen else (had.host, had.port)
        names = [region.name for region in job.spec.regions]  # some may have left it
        here = here or [region for region in had.here if region in names]
        advertise = advertise or had.advertise
        found = dataclasses.replace(had, port=port, host=host)
    else:
        first = port or PORT
        ports = _free_ports(host, first + 1, count)
        found = ServerFile(uid=str(uuid.uuid4()), port=first, ports=ports, host=host)
    return dataclasses.replace(found, advertise=advertise, here=tuple(here))


def write_server(folder: Path, server: ServerFile) -> None:
    text = json.dumps(dataclasses.asdict(server), indent=2) + "\n"
    write_private(folder / SERVER_FILE, text.encode())


def read_server(folder: Path) -> ServerFile:
    """Raise SpecError for a folder without one."""
    path = folder / SERVER_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        problem = "is no folder of `atoll serve`"
        raise SpecError(str(folder.parent), problem, "give the one that it names") from error
    except OSError as error:
        remedy = "ask as the user who runs `atoll serve`"
        raise SpecError(str(path), f"cannot be read ({error.strerror})", remedy) from error
    found: ServerFile = parse(ServerFile, text, str(path))
    return found


def line_with(token: Token | str, out: Path) -> str:
    """Return what is to be typed on another machine."""
    place = read_server(out / MACHINES_FOLDER).place
    return f"{Env.TOKEN}={token} atoll join {place}"  # as a variable: all users see arguments


def anchor_in(folder: Path, now: float) -> Authority:
    """Return the certificate of the join port, made once. Raises SpecError for a damaged file."""
    path = folder / ANCHOR_FILE
    if not path.exists():
        new = make_anchor(SERVER_NAME, now, ANCHOR_DAYS * DAY_SECONDS)
        texts = {"certificate": new.certificate.decode(), "key": new.key.decode()}
        write_private(path, json.dumps(texts).encode())
    try:
        found = documents.mapping(path.read_text(encoding="utf-8"))
        ssl.PEM_cert_to_DER_cert(str(found["certificate"]))
        return Authority(str(found["certificate"]).encode(), str(found["key"]).encode())
    except (ValueError, KeyError) as error:
        remedy = "put a copy of it back, or delete it: then each machine joins anew, with a token"
        raise SpecError(str(path), "is damaged", remedy) from error


def new_token(out: Path, *, region: str, uses: int | None, hours: float, now: float) -> Token:
    """Return a new token of the job in a folder of `atoll serve`. Raises SpecError."""
    folder = out / MACHINES_FOLDER
    der = ssl.PEM_cert_to_DER_cert(anchor_in(folder, now).certificate.decode())
    token = Token.new(digest_of(der))
    granted = Granted(
        name=token.name,
        secret_hash=hash_of(token.secret),
        region=region,
        uses=uses,
        until=int(now + 3600 * hours),
    )
    Book(folder).change(lambda register: (with_token(register, granted, now), None))
    return token


def leaf_folder(out: Path, role: str, region: str) -> Path:
    """Of the credentials of a process on this machine; `region`: of a learner."""
    return out / CREDENTIALS_FOLDER / (f"learner-{region}" if role == Role.LEARNER else role)


def address(flag: str, text: str, port: int) -> tuple[str, int]:
    """HOST[:PORT] as both; the port is `port` where none is given. Raises SpecError."""
    try:
        return split(text) if text else ("", port)
    except ValueError as error:
        alone = ":" not in text and not text.isdecimal()  # a port alone is no host
        if alone or (text.startswith("[") and text.endswith("]")):
            return text.strip("[]"), port
        remedy = "give HOST or HOST:PORT, an IPv6 address in brackets: [fd00::1]:7700"
        raise SpecError(flag, str(error), remedy) from error


def own_host() -> str:
    """Return the address of this machine's interface with the default route, else its name."""
    for address in NOWHERE:
        with suppress(OSError):
            return own_address(address, 9)
    return socket.gethostname()


def _free_ports(host: str, first: int, count: int) -> tuple[int, ...]:
    found: list[int] = []
    for port in range(first, PORT_MAX + 1):
        if len(found) == count:
            break
        try:
            listening_socket(host, port).close()
            found.append(port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):  # no port would be free
                problem = f"{host} is no address of this machine ({error.strerror})"
                remedy = "listen on 0.0.0.0, and say with --advertise how others reach this machine"
                raise SpecError("--listen", problem, remedy) from error
    if len(found) < count:
        raise SpecError("--listen", f"there are no {count} free ports from {first}", "give a lower")
    return tuple(found)


LOOPBACK: Final = "127.0.0.1"
KEEP_SECONDS: Final = 60.0  # between two looks at the certificates of this machine
HOUR_SECONDS: Final = 3600.0
HEARD_SECONDS: Final = 4.0  # in which each machine has asked the shards how the job stands
SHOWN_SECONDS: Final = 1.0  # between two looks at what is shown of the machines
INVITES: Final = "On each machine with learners, within"


@dataclass(slots=True, kw_only=True)
class MachineServer(Elsewhere):
    """Of one job. `listen` and `advertised` are hosts; an empty one: as the caller dials it."""

    job: Job
    out: Path
    server: ServerFile
    listen: str
    advertised: str
    regions: frozenset[str]  # whose learners are processes here
    certificates: JobCertificates
    anchor: Authority
    endpoints: Sequence[str] = ()
    observer: str = ""
    traffic: MachineTraffic = field(default_factory=MachineTraffic)
    kept_at: float = -KEEP_SECONDS
    shown: tuple[ShownMachine, ...] = ()
    shown_at: float = -SHOWN_SECONDS
    leaving_since: float = 0.0  # when the present end began, and when it was asked for last
    leaving_at: float = float("-inf")
    entered: Register = field(default_factory=Register)  # as it was read last
    failed: str = ""  # why the job has
    trouble: str = ""  # with the files of `machines`, as it was said last

    @property
    def book(self) -> Book:
        return Book(self.out / MACHINES_FOLDER)

    def here(self, job: Job) -> Job:
        regions = [region for region in job.spec.regions if region.name in self.regions]
        return job.model_copy(update={"spec": job.spec.model_copy(update={"regions": regions})})

    def through(self, planned: list[Planned]) -> list[Planned]:
        return [self._secured(process) for process in planned]

    def listed(self, slots: Expected) -> Expected:
        entered = self._register().machines
        machines = tuple(
            ListedMachine(name=machine.name, slots=machine.slots) for machine in entered
        )
        return replace(slots, machines=machines)

    @contextmanager
    def open(self, say: Callable[[str], None]) -> Iterator[None]:
        self._keep(time.monotonic(), say)
        servicer = JoinPort(
            book=self.book,
            certificates=self.certificates,
            offered=self.offered,
            run_file=lambda: (self.out / RUN_FILE).read_text(encoding="utf-8"),
            bundle=self.bundle,
            failed=lambda: self.failed,
            say=say,
        )
        self._files = Files(self.out, say)
        self.traffic = MachineTraffic(moved_by_machines(read_tapes(self.out)))
        self._check_ports()
        with opened(joined(self.listen, self.server.port), self.anchor, servicer):
            yield
            self._write_machines()

    def edited(self, job: Job) -> None:
        self.job = job

    def machines(self, seen: RunSnapshot) -> Sequence[ShownMachine]:
        now = time.monotonic()
        try:
            self._keep(now, self._files.say)
        except (OSError, SpecError) as error:  # those that are there last for days
            self._files.say(f"certificates cannot be renewed, and are tried again: {error}")
        self.traffic.see(now, seen.replies)
        if now - self.shown_at >= SHOWN_SECONDS:
            self.shown_at = now
            self._write_machines()
        return self.shown

    def refused(self) -> Mapping[str, str]:
        return {x.slot: x.why for machine in self._register().machines for x in machine.refused}

    def fail(self, why: str) -> None:
        self.failed = why

    def leaving(self, seen: RunSnapshot) -> bool:
        """Also while a machine may not have asked yet how the job ends."""
        now = time.monotonic()
        if now - self.leaving_at > 2 * HEARD_SECONDS:
            self.leaving_since = now
        self.leaving_at = now
        if now - self.leaving_since < HEARD_SECONDS and self._register().machines:
            return True
        return None in seen.replies or any(
            not slot.finished and slot.state not in GONE
            for reply in seen.replies
            if reply is not None
            for slot in reply.slots
            if split_slot(slot.slot)[0] not in self.regions
        )

    def bundle(self, machine: Member, rendezvous: str) -> Bundle:
        """Return what the learners of a machine start from."""
        regions = {region.name: region for region in self.job.spec.regions}
        return Bundle(
            job=self.job.name,
            region=machine.region,
            endpoints=tuple(map(self._dialled, self.endpoints)),
            container=container_elsewhere(self.job, machine.region),
            learners=regions[machine.region].learners,
            slots=machine.slots,
            name=machine.name,
            host=machine.host,
            hosts=machine.hosts,
            hosts_min=self.job.spec.learner.hosts_min or 0,
            rendezvous=rendezvous,
        )

    def offered(self) -> OpenSlots:
        text = (self.out / SLOTS_FILE).read_text(encoding="utf-8")
        regions = [x for x in Expected.from_json(text).regions if x.name not in self.regions]
        slots = {x.name: [slot_name(x.name, i) for i in range(x.learners)] for x in regions}
        hosts = self.job.spec.learner.hosts
        return OpenSlots(slots=slots, folder=shown(self.out), hosts=hosts)

    def _write_machines(self) -> None:
        self.shown = shown_machines(self._register(), self.traffic)
        text = to_json(MachinesFile(machines=self.shown))
        self._files.write(MACHINES_FILE, text)

    def _secured(self, planned: Planned) -> Planned:
        env, command = {**planned.env}, planned.command
        region = env.get(Env.REGION, "")
        env[Env.TLS_DIR] = str(leaf_folder(self.out, planned.role, region))
        if planned.role == "shard":
            listen = joined(self.listen, split(planned.endpoint)[1])
            command = tuple(listen if word == planned.endpoint else word for word in command)
        return replace(planned, env=env, command=command)

    def _dialled(self, endpoint: str) -> str:
        """As other machines dial a shard: without a host, at that which they dial already."""
        return joined(self.advertised, split(endpoint)[1])

    def _check_ports(self) -> None:
        """Raise SpecError where a shard could not listen: the job would fail on all machines."""
        for port in self.server.ports:
            try:
                listening_socket(self.listen, port).close()
            except OSError as error:
                problem = f"port {port}, of a shard, cannot be bound ({error.strerror})"
                remedy = "free it, and start again: the machines of the job know this port"
                raise SpecError("--listen", problem, remedy) from error

    def _register(self) -> Register:
        """As it is, or as it was read last: a register that cannot be read ends no training."""
        try:
            self.entered, self.trouble = self.book.read(), ""
        except UnreadableError as error:
            if str(error) != self.trouble:
                self.trouble = str(error)
                self._files.say(f"{error}; the run goes on, and nobody enters meanwhile")
        return self.entered

    def _keep(self, now: float, say: Callable[[str], None]) -> None:
        if now - self.kept_at >= KEEP_SECONDS:
            self.kept_at = now
            for line in self.certificates.keep(time.time()):
                say(line)

    def invitation(self) -> str:
        """Return the last start's, while it lasts, else one for as many machines as find a slot."""
        now, hours = time.time(), DAY_HOURS
        register, token = self.book.read(), self.server.invitation
        for granted in valid(register.tokens, now + HOUR_SECONDS):
            if granted.uses and token.startswith(f"{granted.name}."):
                hours = (granted.until - now) // HOUR_SECONDS
                break
        else:
            uses = max(1, free_places(register, self.offered()))
            token = str(new_token(self.out, region="", uses=uses, hours=hours, now=now))
            self.server = replace(self.server, invitation=token)
            write_server(self.out / MACHINES_FOLDER, self.server)
        return f"{INVITES} {hours:.0f} hours:\n\n  {line_with(token, self.out)}\n"


def shown_machines(register: Register, traffic: MachineTraffic) -> tuple[ShownMachine, ...]:
    """Return the machines of the job, and those that were revoked and have moved bytes."""
    total = traffic.total
    there = {Ends(machine.region, machine.name): machine for machine in register.machines}
    rows = []
    for ends in (*there, *sorted(total.keys() - there.keys())):
        machine, moved, rates = there.get(ends), total.get(ends, Moved()), traffic.rates(ends)
        row = ShownMachine(
            name=ends.machine,
            region=ends.region,
            slots=machine.slots if machine else (),
            address=machine.address if machine else "",
            revoked=machine is None,
            up_bytes=moved.up,
            down_bytes=moved.down,
            up_rate=rates and rates[0],
            down_rate=rates and rates[1],
        )
        rows.append(row)
    return tuple(rows)


def serving_in(
    out: Path,
    job: Job,
    *,
    listen: str = "",
    advertise: str = "",
    here: Sequence[str] = (),
    now: float,
) -> MachineServer:
    """Return the server of the job in a run folder, as it was or new. Raises SpecError.

    Empty flags leave what the folder has.
    """
    folder = make_private(out / MACHINES_FOLDER)
    server = server_file(folder, job, listen, advertise, here)
    host, here = server.host, server.here
    entered = Book(folder).read()
    _check_here(job, here, entered)
    keeps_slots(entered, job.spec.slots, shown(out))
    advertised, advertised_port = address("--advertise", server.advertise, 0)
    shown_host = advertised or (own_host() if host in EVERYWHERE else host)
    server = replace(server, place=joined(shown_host, advertised_port or server.port))
    write_server(folder, server)
    local = LOOPBACK if host in EVERYWHERE else host
    owner = JobIdentity(namespace=NAMESPACE, job=job.name, uid=server.uid)
    region = job.spec.syncer.region or job.spec.regions[0].name
    leaves = {
        leaf_folder(out, x, ""): identity_of(owner, region, x) for x in (Role.SHARD, Role.EVALUATOR)
    }
    leaves[out / OBSERVER_FOLDER] = identity_of(owner, region, Role.OPERATOR)
    for near in here:
        leaves[leaf_folder(out, Role.LEARNER, near)] = identity_of(owner, near, Role.LEARNER)
    return MachineServer(
        job=job,
        out=out,
        server=server,
        listen=host or "0.0.0.0",
        advertised=advertised,
        regions=frozenset(here),
        certificates=JobCertificates(folder, owner, leaves),
        anchor=anchor_in(folder, now),
        endpoints=endpoints_at(server.ports, local),
        observer=str(out / OBSERVER_FOLDER),
        entered=entered,
    )


def _check_here(job: Job, here: Sequence[str], register: Register) -> None:
    names = [region.name for region in job.spec.regions]
    for name in here:
        if name not in names:
            raise SpecError("--here", f"{name} is no region of the job", f"use {', '.join(names)}")
    for machine in register.machines:
        if machine.region in here:
            problem = f"{machine.region} has learners on machine {machine.name}"
            remedy = f"leave it out, or first `atoll tokens DIR --revoke {machine.name}`"
            raise SpecError("--here", problem, remedy)
