"""Tokens, machines and certificates of a job: who may enter, and which slots are whose.

The decisions are functions of a Register; `Book` is the file with it in the job's folder. `atoll
serve` and `atoll tokens` are two processes, so each reads it again, under a lock, for every change.
The authority is the same as the operator's (`authority.job_authority`), with files for Secrets.
"""

import dataclasses
import hmac
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from atoll_operator.authority.job_authority import (
    DAY_SECONDS,
    LEAF_DAYS,
    Authorities,
    issue,
    make_authorities,
    outdated,
    renewal,
    sign,
    turned,
)
from atoll_operator.machines.bundle import (
    hash_of,
    host_of,
    locked,
    write_credentials,
    write_private,
)
from atoll_protos.documents import mapping, parse
from atoll_protos.errors import SpecError
from atoll_protos.network.credentials import Credentials, Identity, JobIdentity, Role

REGISTER_FILE: Final = "register.json"
NAME_CHARACTERS_MAX: Final = 48
ANOTHER_TOKEN: Final = "ask for another one: `atoll tokens DIR` makes it on the server's machine"

T = TypeVar("T")


class StrangerError(SpecError):
    """Whoever has nothing to show: neither the protocol nor the secret of a token or a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A token, without its secret. `uses` are left (None: any number), `until` in UNIX seconds."""

    name: str
    secret_hash: str
    region: str = ""  # empty: any
    uses: int | None = None
    until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSlot:
    """A learner that is refused for good, as its machine says."""

    slot: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine that has entered; it is who holds the private half of its key.

    `wanted` is the name that it had asked for, `since` UNIX seconds; the last four are as its last
    call had them.
    """

    name: str
    wanted: str
    key_digest: str
    region: str
    slots: tuple[str, ...]
    since: int = 0
    host: int = 0  # which of the `hosts` machines of its learner it is
    hosts: int = 1
    certificate: str = ""
    address: str = ""
    rendezvous: str = ""  # HOST:PORT where the others meet host 0
    refused: tuple[RefusedSlot, ...] = ()

    @property
    def shown(self) -> str:
        """Its slots, as a person reads them."""
        of = f" host {self.host} of {self.hosts}" if self.hosts > 1 else ""
        return ", ".join(self.slots) + of


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A machine that was revoked: nobody gets its name again, and its key lets nobody in."""

    name: str
    key_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Of one job."""

    tokens: tuple[Granted, ...] = ()
    machines: tuple[Member, ...] = ()
    former: tuple[Former, ...] = ()

    def rendezvous(self, slot: str) -> str:
        """Where the hosts of a slot's learner meet; empty: host 0 has not said it yet."""
        first = (x for x in self.machines if slot in x.slots and x.hosts > 1 and not x.host)
        return next((machine.rendezvous for machine in first), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRequest:
    """What a machine asks for. `region` and `slot` may be empty, `hosts` 0: as the job says.

    One that is known by its key needs no token.
    """

    key_digest: str
    token: str = ""
    secret: str = ""
    region: str
    name: str
    learners: int
    hosts: int = 0
    host: int | None = None
    slot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSlots:
    """The regions of the job with their slots, but for those that the server has itself."""

    slots: Mapping[str, Sequence[str]]
    folder: str  # of the job, for the commands in messages
    hosts: int = 1  # of a learner, where nobody says otherwise


def enter(
    register: Register, asked: EntryRequest, offered: OpenSlots, now: float
) -> tuple[Register, Member]:
    """Return the machine with this key; a new one gets free slots, and its token loses a use.

    Raises SpecError.
    """
    known = (machine for machine in register.machines if machine.key_digest == asked.key_digest)
    if (machine := next(known, None)) is not None:
        return register, machine
    revoked = any(former.key_digest == asked.key_digest for former in register.former)
    if revoked or not asked.token:
        problem = "is not one of this job: it was revoked, or has another key"
        remedy = f"{ANOTHER_TOKEN}, and enter with it"
        raise StrangerError(f"machine {asked.name}", problem, remedy)
    token = allowed(register, asked.token, asked.secret, now)
    if token.uses == 0:
        raise SpecError("--token", f"{token.name} is used up", ANOTHER_TOKEN)
    region = _region(asked.region, token.region, offered)
    host, hosts = _host(asked, offered)
    if hosts > 1:
        own = _slot_of_host(register, asked.slot, (host, hosts), offered.slots[region])
    else:
        own = _free_slots(register, asked.learners, region, offered)
    machine = Member(
        name=_free_name(register, asked.name),
        wanted=asked.name,
        key_digest=asked.key_digest,
        region=region,
        slots=own,
        since=int(now),
        host=host,
        hosts=hosts,
    )
    spent = token if token.uses is None else replace(token, uses=token.uses - 1)
    tokens = tuple(spent if other.name == token.name else other for other in register.tokens)
    return replace(register, tokens=tokens, machines=(*register.machines, machine)), machine


def allowed(register: Register, name: str, secret: str, now: float) -> Granted:
    """Return the token of this name, if it is valid at `now`. Raises SpecError."""
    token = next((granted for granted in register.tokens if granted.name == name), None)
    # Both ways cost the same.
    right = hmac.compare_digest(token.secret_hash if token else "", hash_of(secret))
    if token is None or not right:
        problem = f"{name} is not a token of this job: it was revoked, has expired, or is mistyped"
        raise StrangerError("--token", problem, ANOTHER_TOKEN)
    if now >= token.until:
        raise SpecError("--token", f"{name} has expired", ANOTHER_TOKEN)
    return token


def with_machine(register: Register, machine: Member) -> Register:
    """With this in place of the machine of its name."""
    machines = (machine if x.name == machine.name else x for x in register.machines)
    return replace(register, machines=tuple(machines))


def revoke(register: Register, name: str) -> Register:
    """Without a token or a machine of this name. Raises SpecError where there is neither."""
    out = [machine for machine in register.machines if machine.name == name]
    if out:
        machines = tuple(machine for machine in register.machines if machine not in out)
        former = (Former(name=machine.name, key_digest=machine.key_digest) for machine in out)
        return replace(register, machines=machines, former=(*register.former, *former))
    if any(token.name == name for token in register.tokens):
        tokens = tuple(token for token in register.tokens if token.name != name)
        return replace(register, tokens=tokens)
    names = ", ".join([*(x.name for x in register.machines), *(x.name for x in register.tokens)])
    raise SpecError("--revoke", f"{name} is no machine and no token", f"use one of {names or '-'}")


def with_token(register: Register, token: Granted, now: float) -> Register:
    """One more; those that are past are left out."""
    return replace(register, tokens=(*valid(register.tokens, now), token))


def free_places(register: Register, offered: OpenSlots) -> int:
    """How many machines find a slot yet, where each brings one learner, or one host of it."""
    slots = {slot for slots in offered.slots.values() for slot in slots}
    taken = [slot for machine in register.machines for slot in machine.slots if slot in slots]
    return max(0, offered.hosts * len(slots) - len(taken))


def keeps_slots(register: Register, slots: Sequence[str], folder: str) -> None:
    """Raise SpecError where a machine has a slot that the job, in this folder, is not to have."""
    for machine in register.machines:
        if gone := [slot for slot in machine.slots if slot not in slots]:
            problem = f"machine {machine.name} has {', '.join(gone)}"
            remedy = f"first take the machine out: `atoll tokens {folder} --revoke {machine.name}`"
            raise SpecError(f"spec.regions[{machine.region}].learners", problem, remedy)


def valid(tokens: Iterable[Granted], now: float) -> list[Granted]:
    return [token for token in tokens if now < token.until]


class UnreadableError(SpecError):
    """The register cannot be read now: no machine is refused for that."""


class Book:
    """The register in a folder; each call reads it again. Raises OSError and UnreadableError."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / REGISTER_FILE

    def read(self) -> Register:
        try:
            text = self._file.read_text(encoding="utf-8")
            found: Register = parse(Register, text, str(self._file))
        except FileNotFoundError:
            return Register()
        except (OSError, UnicodeDecodeError, SpecError) as error:
            problem = f"cannot be read ({error})"
            raise UnreadableError(str(self._file), problem, "put a copy of it back") from error
        return found

    def change(self, made: Callable[[Register], tuple[Register, T]]) -> T:
        """Write what `made` makes of it, durable before this returns what else it gives."""
        with locked(self._folder):
            had = self.read()
            new, result = made(had)
            if new != had:
                text = json.dumps(dataclasses.asdict(new), indent=2) + "\n"
                write_private(self._file, text.encode())
        return result


def _region(asked: str, of_token: str, offered: OpenSlots) -> str:
    names = ", ".join(offered.slots)
    if asked and of_token and asked != of_token:
        problem = f"is {asked}, and the token is for {of_token}"
        raise SpecError("--region", problem, f"leave it out, or {ANOTHER_TOKEN}")
    region = asked or of_token or (names if len(offered.slots) == 1 else "")
    if not region:
        raise SpecError("--region", f"is not given, and the job has {names}", "give one of them")
    if region not in offered.slots:
        problem = f"{region} is no region for other machines"
        raise SpecError("--region", problem, f"use one of {names}" if names else "use none")
    return region


def _host(asked: EntryRequest, offered: OpenSlots) -> tuple[int, int]:
    """Which machine of how many of its learner. Raises SpecError."""
    hosts = asked.hosts or offered.hosts
    host = host_of(hosts, asked.host, asked.learners)
    if asked.slot and hosts == 1:
        raise SpecError("--slot", "is for a learner of several hosts", "leave it out")
    return host, hosts


def _free_slots(
    register: Register, wanted: int, region: str, offered: OpenSlots
) -> tuple[str, ...]:
    taken = {slot for machine in register.machines for slot in machine.slots}
    free = [slot for slot in offered.slots[region] if slot not in taken]
    if wanted > len(free):
        raise _too_few(register, wanted, region, free, offered)
    return tuple(free[:wanted])


def _slot_of_host(
    register: Register, wanted: str, place: tuple[int, int], slots: Sequence[str]
) -> tuple[str, ...]:
    """Find a slot that lacks this host of so many, one with others first. Raises SpecError."""
    (host, hosts), own = place, [wanted] if wanted else slots
    has = {
        slot: [machine for machine in register.machines if slot in machine.slots] for slot in slots
    }
    lacking = [
        slot
        for slot in own
        if slot in has and all(x.hosts == hosts and x.host != host for x in has[slot])
    ]
    begun = [slot for slot in lacking if has[slot]]
    if len(begun) > 1:
        named = ", ".join(f"{slot} ({has[slot][0].name})" for slot in begun)
        problem = f"is not given, and several learners lack host {host}: {named}"
        raise SpecError("--slot", problem, "give one of them")
    if not lacking:
        those = ", ".join(f"{x.name} has {x.shown}" for slot in own for x in has.get(slot, ()))
        problem = f"no learner lacks host {host} of {hosts}"
        remedy = "give another --host or --slot, or first `atoll tokens DIR --revoke MACHINE`"
        raise SpecError("--host", f"{problem} ({those or f'{wanted} is no slot here'})", remedy)
    return ((begun or lacking)[0],)


def _too_few(
    register: Register, wanted: int, region: str, free: Sequence[str], offered: OpenSlots
) -> SpecError:
    total = len(offered.slots[region])
    holders = ", ".join(
        f"{machine.name} has {len(machine.slots)}"
        for machine in register.machines
        if machine.region == region
    )
    problem = f"{wanted} wanted, and {len(free)} of the {total} of region {region} are free"
    grown = f"atoll edit {offered.folder} --learners {region}={total + wanted - len(free)}"
    more = f" ({holders}; --revoke frees them)" if holders else ""
    return SpecError("--learners", problem + more, f"on the server's machine: {grown}")


def _free_name(register: Register, wanted: str) -> str:
    used = {x.name for x in register.machines} | {x.name for x in register.former}
    name = re.sub(r"[^A-Za-z0-9]+", "-", wanted)[:NAME_CHARACTERS_MAX].strip("-") or "machine"
    number, found = 2, name
    while found in used:
        found, number = f"{name}-{number}", number + 1
    return found


MISSING: Final = "there is none"
AUTHORITY_FILE: Final = "authority.json"  # certificates and keys in one file: written at once


@dataclass(slots=True)
class JobCertificates:
    """Of one job; `folder` is for this user alone. Lives in seconds; `leaves` by folder."""

    folder: Path
    owner: JobIdentity
    leaves: Mapping[Path, Identity]
    life: float = LEAF_DAYS * DAY_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, now: float) -> list[str]:
        """Make and renew what is due at `now`; returns what was done, in words."""
        with self._lock:
            authorities, said = self._turned(now)
            done = [said] if said else []
            for folder, identity in self.leaves.items():
                why = _why_renewed(authorities, folder, identity, now)
                if why:
                    write_credentials(folder, issue(authorities, identity, now, self.life))
                    if why != MISSING:
                        done.append(f"a new certificate for the {identity.role}: {why}")
            return done

    def of_machine(self, machine: Member, request: bytes, now: float) -> str:
        """Return a machine's certificate (PEM), or one for its request. Raises SpecError."""
        identity = identity_of(self.owner, machine.region, Role.LEARNER, machine.name)
        with self._lock:
            authorities, had = self._read(), machine.certificate
            if had and not outdated(authorities, had.encode(), identity, now):
                return had
            return sign(authorities, identity, request, now, self.life).decode()

    def bundle(self) -> bytes:
        with self._lock:
            return self._read().bundle

    def _read(self) -> Authorities:
        path = self.folder / AUTHORITY_FILE
        try:
            texts = mapping(path.read_text(encoding="utf-8"))
        except ValueError:
            texts = {}  # damaged: the words of one that is not there have the remedy
        files = {name: str(text).encode() for name, text in texts.items()}
        return Authorities.from_files(files, kept=str(path))

    def _turned(self, now: float) -> tuple[Authorities, str]:
        if not (self.folder / AUTHORITY_FILE).exists():
            authorities, said = make_authorities(self.owner, now), ""
        else:
            authorities, said = turned(self._read(), self.owner, now)
            if not said:
                return authorities, ""
        texts = {name: file.decode() for name, file in authorities.to_files().items()}
        write_private(self.folder / AUTHORITY_FILE, json.dumps(texts).encode())
        return authorities, said


def _why_renewed(authorities: Authorities, folder: Path, identity: Identity, now: float) -> str:
    try:
        return renewal(authorities, Credentials.read(folder), identity, now)
    except SpecError:
        return MISSING


def identity_of(owner: JobIdentity, region: str, role: Role, machine: str = "") -> Identity:
    return Identity(
        namespace=owner.namespace,
        job=owner.job,
        uid=owner.uid,
        region=region,
        role=role,
        machine=machine,
    )
