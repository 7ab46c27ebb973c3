"""What makes `atoll serve` the same server after a restart: the folder `machines` of its run.

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
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.api.job.spec import Job
from atoll_operator.authority.job_authority import DAY_SECONDS, Authority, make_anchor
from atoll_operator.local.folder.run_files import CREDENTIALS_FOLDER, MACHINES_FOLDER
from atoll_operator.machines.private_files import write_private
from atoll_operator.machines.server.register import Book, Granted, May, with_token
from atoll_operator.machines.token import SERVER_NAME, Token, digest_of, hash_of
from atoll_protos import json_text
from atoll_protos.errors import SpecError
from atoll_protos.job.strict_json import parse
from atoll_protos.network.addresses import PORT_MAX, split
from atoll_protos.network.identity import Identity, JobIdentity, Role
from atoll_protos.network.listening import listening_socket, own_address

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

    `host`, `advertise` and `prices` are what the flags said last, `here` the regions with learners
    on this machine, `place` HOST:PORT as it was printed.
    """

    uid: str
    port: int
    ports: tuple[int, ...]
    host: str = ""
    advertise: str = ""
    here: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()
    place: str = ""


def check(job: Job, here: Sequence[str]) -> None:
    """Raises SpecError for a job that machines cannot train, and for unknown regions."""
    names = [each.name for each in job.spec.regions]
    for each in here:
        if each not in names:
            raise SpecError("--here", f"{each} is no region of the job", f"use {', '.join(names)}")


def server_file(
    folder: Path,
    job: Job,
    listen: str,
    advertise: str,
    here: Sequence[str],
    prices: Sequence[str],
) -> ServerFile:
    """As it is in the folder, changed by flags that are given; else new. Raises SpecError."""
    host, port = address("--listen", listen, 0)
    path = folder / SERVER_FILE
    count = job.spec.syncer.shards * (2 if job.spec.syncer.standby else 1)
    if path.exists():
        had = read_server(folder)
        if len(had.ports) != count:
            problem = f"the shards have {len(had.ports)} ports in {path}, and {count} are needed"
            remedy = "start with the number of shards and the standby that the job began with"
            raise SpecError("spec.syncer", problem, remedy)
        host, port = (host, port or had.port) if listen else (had.host, had.port)
        names = [each.name for each in job.spec.regions]  # some may have left it
        here = here or [each for each in had.here if each in names]
        advertise, prices = advertise or had.advertise, prices or had.prices
        found = dataclasses.replace(had, port=port, host=host)
    else:
        first = port or PORT
        ports = _free_ports(host, first + 1, count)
        found = ServerFile(uid=str(uuid.uuid4()), port=first, ports=ports, host=host)
    return dataclasses.replace(found, advertise=advertise, here=tuple(here), prices=tuple(prices))


def write_server(folder: Path, server: ServerFile) -> None:
    text = json.dumps(dataclasses.asdict(server), indent=2) + "\n"
    write_private(folder / SERVER_FILE, text.encode())


def read_server(folder: Path) -> ServerFile:
    """Raises SpecError for a folder without one."""
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


def line_with(token: Token, out: Path, verb: str = "join") -> str:
    """What is to be typed on another machine."""
    return f"atoll {verb} {read_server(out / MACHINES_FOLDER).place} --token {token}"


def anchor_in(folder: Path, now: float) -> Authority:
    """The certificate of the join port, made once. Raises SpecError for a damaged file."""
    path = folder / ANCHOR_FILE
    if not path.exists():
        new = make_anchor(SERVER_NAME, now, ANCHOR_DAYS * DAY_SECONDS)
        texts = {"certificate": new.certificate.decode(), "key": new.key.decode()}
        write_private(path, json.dumps(texts).encode())
    try:
        found = json_text.mapping(path.read_text(encoding="utf-8"))
        ssl.PEM_cert_to_DER_cert(str(found["certificate"]))
        return Authority(str(found["certificate"]).encode(), str(found["key"]).encode())
    except (ValueError, KeyError) as error:
        remedy = "put a copy of it back, or delete it: then each machine joins anew, with a token"
        raise SpecError(str(path), "is damaged", remedy) from error


def new_token(
    out: Path,
    *,
    region: str,
    uses: int | None,
    hours: float,
    now: float,
    may: May = May.JOIN,
) -> Token:
    """A new token of the job in a folder of `atoll serve`. Raises SpecError."""
    folder = out / MACHINES_FOLDER
    der = ssl.PEM_cert_to_DER_cert(anchor_in(folder, now).certificate.decode())
    token = Token.new(digest_of(der))
    granted = Granted(
        name=token.name,
        secret_hash=hash_of(token.secret),
        region=region,
        uses=uses,
        until=int(now + 3600 * hours),
        may=may,
    )
    Book(folder).change(lambda register: (with_token(register, granted, now), None))
    return token


def leaf_folder(out: Path, role: str, region: str) -> Path:
    """Of the credentials of a process on this machine; `region`: of a learner."""
    return out / CREDENTIALS_FOLDER / (f"learner-{region}" if role == Role.LEARNER else role)


def identity(owner: JobIdentity, region: str, role: Role) -> Identity:
    return Identity(
        namespace=owner.namespace, job=owner.job, uid=owner.uid, region=region, role=role
    )


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
    """The address of this machine's interface with the default route, else its name."""
    for each in NOWHERE:
        with suppress(OSError):
            return own_address(each, 9)
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
