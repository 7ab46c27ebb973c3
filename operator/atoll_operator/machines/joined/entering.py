"""How a machine becomes one of a job: by a token, by a folder of credentials, or as it was before.

What it is then stands in its state folder, which is a bundle; from there on all are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.job_status import GONE
from atoll_operator.authority.job_authority import make_key
from atoll_operator.machines import bundle as bundles
from atoll_operator.machines.bundle import (
    JOB_FILE,
    KEY_FILE,
    TLS_FOLDER,
    Bundle,
    Token,
    host_of,
    make_private,
    must_take,
    state_root,
    write_private,
)
from atoll_operator.machines.joined.learners import checked
from atoll_operator.machines.joined.server_link import ServerLink, link_to, proved
from atoll_operator.machines.joined.watching import (
    Brought,
    Server,
    Source,
    command,
    keep_entered,
)
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.names import slot_name, split_slot
from atoll_protos.network.credentials import Credentials, Needed, OutOfDateError, Role

TOKEN: Final = "--token"
FLAG: Final = "--credentials"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """Where and as what a machine joins; None leaves it as it was.

    `variable` is a token for a machine that is not known here. `state` None: a folder below the
    user's state folder. `enter_only`: it is to have its state folder, and nothing trains yet.
    """

    server: str = ""
    token: str = ""
    variable: str = ""
    credentials: Path | None = None  # in place of a server
    region: str = ""
    learners: int | None = None
    first_slot: int | None = None
    hosts: int | None = None  # machines of its learner, and which of them this is
    host: int | None = None
    slot: str = ""
    rendezvous: str = ""
    name: str
    state: Path | None = None
    enter_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """A machine of a job: its state folder, what it is, and whether it has entered only now."""

    folder: Path
    bundle: Bundle
    source: Source
    new: bool
    before: Bundle | None = None  # what the folder had


def enter(place: JoinOptions, now: float) -> Entered:
    """Return what this machine is; `now` in UNIX seconds. Raises SpecError."""
    checked(place.rendezvous)
    if place.credentials is not None:
        return _with_credentials(place, place.credentials, now)
    token = Token.parse(place.token) if place.token else None
    kept = _kept(place, token)
    if token is None and place.variable:
        other = Token.parse(place.variable)
        token = None if kept is not None and _digest(kept[1]) != other.digest else other
    if kept is not None:
        folder, machine = kept
        _same(place, token, folder, machine)
        link = ServerLink(place.server, machine.anchor)
        if token is None or not _is_out(folder, machine, link):
            rendezvous = place.rendezvous or machine.rendezvous
            machine = replace(machine, server=place.server, rendezvous=rendezvous)
            return Entered(folder=folder, bundle=machine, source=Server(link), new=False)
        (folder / KEY_FILE).unlink()  # nobody is let in with it any more
    if token is None:
        problem = f"is missing, and no folder here holds machine {place.name} of this job"
        raise SpecError(TOKEN, problem, _others(place.server))
    return _entered(place, token, kept and kept[0])


def _kept(place: JoinOptions, token: Token | None) -> tuple[Path, Bundle] | None:
    """Find the machine that this one is already; by the server's address, else its certificate."""
    if place.state is not None:
        machine = bundles.read(place.state)
        return None if machine is None else (place.state, machine)
    mine = [kept for kept in bundles.state_folders()[0] if kept[1].wanted == place.name]
    mine = [kept for kept in mine if kept[1].server]
    digest = token.digest if token else ""
    found = [kept for kept in mine if kept[1].server == place.server and not digest]
    if not found and mine:
        digest = digest or link_to(place.server).digest
        found = [kept for kept in mine if _digest(kept[1]) == digest]
    if len(found) > 1:
        names = ", ".join(str(folder) for folder, _ in found)
        raise SpecError("--state", f"several folders are of this job: {names}", "give one of them")
    return found[0] if found else None


def _digest(machine: Bundle) -> str:
    return ServerLink(machine.server, machine.anchor).digest


def _others(server: str) -> str:
    """Advise: this machine may have had another name, as hosts are renamed."""
    machines, faults = bundles.state_folders()
    others = [
        f"go on as {machine.wanted} with --state {folder}"
        for folder, machine in machines
        if machine.server == server
    ]
    return "; or ".join(["give the one that `atoll serve` has printed", *others, *map(str, faults)])


def _same(place: JoinOptions, token: Token | None, folder: Path, machine: Bundle) -> None:
    if not machine.server:
        problem = f"{folder} is of a machine with credentials of a cluster"
        raise SpecError("--state", problem, "give --credentials, or another folder")
    if token is not None and token.digest != _digest(machine):
        problem = f"is of another server than the machine in {folder}"
        raise SpecError(TOKEN, problem, "give another folder with --state")
    for flag, said, is_so in (
        ("--region", place.region or None, machine.region),
        ("--hosts", place.hosts, machine.hosts),
        ("--host", place.host, machine.host),
        ("--slot", place.slot or None, machine.slots[0]),
        ("--learners", place.learners, len(machine.slots)),
    ):
        if said not in (None, is_so):
            problem = f"is {said}, and it is {is_so} for the machine in {folder}"
            remedy = "leave it out, or give another folder with --state, and another --name"
            raise SpecError(flag, problem, remedy)


def _is_out(folder: Path, machine: Bundle, link: ServerLink) -> bool:
    """Whether the server says that it is no machine of the job any more."""
    try:
        Server(link).enter(folder, machine)
    except (AwayError, OSError):
        return False
    except SpecError:
        return True
    return False


def _entered(place: JoinOptions, token: Token, before: Path | None) -> Entered:
    """Enter with a key that is on the disk first: whoever asks again gets the same slots."""
    must_take(place.state or state_root())
    folder = place.state or before or state_root() / f"{token.digest[:8]}-{place.name}"
    link = proved(place.server, token.digest)
    new = not folder.exists()
    if not (make_private(folder) / KEY_FILE).exists():
        write_private(folder / KEY_FILE, make_key())
    asked = pb.EnterRequest(
        token=token.name,
        secret=token.secret,
        region=place.region,
        name=place.name,
        learners=place.learners or 1,
        hosts=place.hosts or 0,
        host=place.host,
        slot=place.slot,
    )
    try:
        bundle = keep_entered(folder, link, asked, place.name, place.rendezvous)
    except AwayError:
        raise  # it may have entered all the same
    except SpecError:
        if not (folder / JOB_FILE).exists():
            (folder / KEY_FILE).unlink()
            if new:
                folder.rmdir()
        raise
    _same(place, token, folder, bundle)
    if place.state is None and before is None:
        uid = Credentials.read(folder / TLS_FOLDER).identity.uid
        default = bundles.default_folder(bundle.job, uid, bundle.name)
        folder = folder if default.exists() else folder.rename(default)
    return Entered(folder=folder, bundle=bundle, source=Server(link), new=True)


def _with_credentials(place: JoinOptions, source: Path, now: float) -> Entered:
    found = bundles.read(source)
    if found is None:
        remedy = "give the folder that `atoll credentials JOB --region REGION --files DIR` writes"
        raise SpecError(FLAG, f"{source / JOB_FILE} is not there", remedy)
    credentials = Credentials.read(source)
    needed = Needed(job=found.job, region=found.region, roles=[Role.LEARNER])
    try:
        identity = credentials.check(now, needed)
    except OutOfDateError as error:
        remedy = f"bring new ones: {command(credentials.identity, source)}"
        raise SpecError(FLAG, str(error), remedy) from error
    folder = place.state or bundles.default_folder(found.job, identity.uid, place.name)
    had = bundles.read(folder)
    if had is not None and (had.server or (had.job, had.region) != (found.job, found.region)):
        whose = "of `atoll serve`" if had.server else f"of job {had.job}, region {had.region}"
        raise SpecError("--state", f"{folder} is of a machine {whose}", "give another folder")
    hosts = place.hosts or (had.hosts if had else found.hosts)
    number = had.host if had and place.host is None else place.host
    host = host_of(hosts, number, place.learners or 1)
    rendezvous = place.rendezvous or (had.rendezvous if had else "")
    if host and not rendezvous:
        problem = f"is not given, and host {host} does not know where host 0 is"
        raise SpecError("--rendezvous", problem, "give HOST:PORT, which host 0 says at its start")
    slots = _slots(place, found, had)
    bundle = replace(
        found, name=place.name, slots=slots, host=host, hosts=hosts, rendezvous=rendezvous
    )
    new = had is None
    return Entered(folder=folder, bundle=bundle, source=Brought(source), new=new, before=had)


def _slots(place: JoinOptions, found: Bundle, had: Bundle | None) -> tuple[str, ...]:
    if found.slots:
        for option, value in (("--learners", place.learners), ("--first-slot", place.first_slot)):
            if value is not None:
                remedy = "leave it out, or bring others: `atoll credentials` has --learners, too"
                problem = f"is given, and the credentials are for {', '.join(found.slots)}"
                raise SpecError(option, problem, remedy)
        return found.slots
    if had is not None and place.learners is None and place.first_slot is None:
        return had.slots
    first, count = place.first_slot or 0, place.learners or 1
    slots = tuple(slot_name(found.region, first + n) for n in range(count))
    _check_count(slots, found.region, found.learners)
    return slots


def check_slots(machine: Bundle, had: Bundle | None, seen: pb.StatusReply | None) -> None:
    """Raise SpecError where the job, as its registrar has it, lacks a slot or another has it.

    Slots of `atoll serve` are this machine's alone.
    """
    if seen is None or machine.server:
        return
    if seen.learners:
        _check_count(machine.slots, machine.region, seen.learners.get(machine.region, 0))
    own = had.slots if had is not None else ()
    for slot in seen.slots:
        if slot.slot not in machine.slots:
            continue
        if slot.owner_uid:
            problem = f"{slot.slot} belongs to a pod, so a cluster has learners of this region"
            remedy = "bring this machine into a region that no cluster serves"
            raise SpecError("--first-slot", problem, remedy)
        if machine.hosts > 1:
            continue  # its other hosts may train, and a learner of others keeps the slot
        if slot.state not in GONE and slot.slot not in own:
            problem = f"{slot.slot} is held by a learner of another machine"
            remedy = "give the first of those that are free, or stop that learner"
            raise SpecError("--first-slot", problem, remedy)


def _check_count(slots: Sequence[str], region: str, learners: int) -> None:
    if split_slot(slots[-1])[1] >= learners:
        problem = f"{', '.join(slots)} wanted, and region {region} has {learners} learners"
        remedy = (
            "use fewer; or give the region more in the manifest of the syncer's cluster, and bring"
            " its credentials again"
        )
        raise SpecError("--learners", problem, remedy)
