"""How a machine becomes one of a job: by a token, or by what its state folder holds."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.authority.job_authority import make_request
from atoll_operator.local.folder.run_files import RUN_FILE, write_whole
from atoll_operator.machines.joined import folder as joined_folder
from atoll_operator.machines.joined import hosts
from atoll_operator.machines.joined.folder import Joined
from atoll_operator.machines.joined.learners import dialled
from atoll_operator.machines.private_files import must_take, state_root
from atoll_operator.machines.server_link import (
    ServerLink,
    link_to,
    proved,
)
from atoll_operator.machines.token import Token
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.network.credentials import Credentials

TOKEN: Final = "--token"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """Where and as what a machine joins; `state` None: a folder below the user's state folder.

    `variable` is a token for a machine that is not known here. `enter_only`: it is to have its
    state folder, and nothing trains yet.
    """

    server: str
    token: str = ""
    variable: str = ""
    region: str = ""
    learners: int | None = None
    hosts: int | None = None  # machines of its learner, and which of them this is
    host: int | None = None
    slot: str = ""
    rendezvous: str = ""
    name: str
    state: Path | None = None
    enter_only: bool = False


def enter(place: JoinOptions) -> tuple[Path, Joined, bool]:
    """Its state folder, and what it is; and whether it has entered only now. Raises SpecError."""
    token = Token.parse(place.token) if place.token else None
    hosts.checked(place.rendezvous)
    found = _kept(place, token)
    if token is None and place.variable:
        other = Token.parse(place.variable)
        token = None if found is not None and found[1].digest != other.digest else other
    if found is not None:
        folder, machine = found
        _same(place, token, folder, machine)
        if token is None or not _is_out(machine, place.server):
            rendezvous = place.rendezvous or machine.rendezvous
            return folder, replace(machine, server=place.server, rendezvous=rendezvous), False
    if token is None:
        problem = f"is missing, and no folder here holds machine {place.name} of this job"
        raise SpecError(TOKEN, problem, _others(place.server))
    return *_entered(place, token), True


def _kept(place: JoinOptions, token: Token | None) -> tuple[Path, Joined] | None:
    """The machine that this one is already; by the server's address, else by its certificate."""
    if place.state is not None:
        machine = joined_folder.read(place.state)
        return None if machine is None else (place.state, machine)
    if token is not None:
        return joined_folder.find(place.server, place.name, token.digest)
    found = joined_folder.find(place.server, place.name)
    if found is None:
        digest = link_to(place.server).digest
        found = joined_folder.find(place.server, place.name, digest)
    return found


def _others(server: str) -> str:
    """What to do: this machine may have had another name, as hosts are renamed."""
    machines, faults = joined_folder.known()
    others = [
        f"go on as {machine.wanted} with --state {folder}"
        for folder, machine in machines
        if machine.server == server
    ]
    return "; or ".join(["give the one that `atoll serve` has printed", *others, *map(str, faults)])


def _same(place: JoinOptions, token: Token | None, folder: Path, machine: Joined) -> None:
    if not machine.digest:
        problem = f"{folder} is of a machine with credentials of a cluster"
        raise SpecError("--state", problem, "give --credentials, or another folder")
    if token is not None and token.digest != machine.digest:
        problem = f"is of another server than the machine in {folder}"
        raise SpecError(TOKEN, problem, "give another folder with --state")
    if place.region and place.region != machine.region:
        problem = f"is {place.region}, and the machine in {folder} is in {machine.region}"
        raise SpecError("--region", problem, "leave it out, or give another folder with --state")
    for flag, said, is_so in (
        ("--hosts", place.hosts, machine.hosts),
        ("--host", place.host, machine.host),
        ("--slot", place.slot or None, machine.slots[0]),
    ):
        if said not in (None, is_so):
            problem = f"is {said}, and it is {is_so} for the machine in {folder}"
            raise SpecError(flag, problem, "leave it out, or give another folder with --state")
    if place.learners not in (None, len(machine.slots)):
        problem = f"is {place.learners}, and the machine in {folder} has {len(machine.slots)}"
        remedy = "leave it out, or bring more under another --name"
        raise SpecError("--learners", problem, remedy)


def _is_out(machine: Joined, server: str) -> bool:
    """Whether the server says that it is no machine of the job any more."""
    try:
        ServerLink(server, machine.anchor).watch(machine.name, machine.secret)
    except AwayError:
        return False
    except SpecError:
        return True
    return False


def _entered(place: JoinOptions, token: Token) -> tuple[Path, Joined]:
    must_take(place.state or state_root())  # first: the server gives slots for good
    link = proved(place.server, token.digest)
    key, request = make_request()
    asked = pb.EnterRequest(
        token=token.name,
        secret=token.secret,
        region=place.region,
        name=place.name,
        learners=place.learners or 1,
        request=request,
        hosts=place.hosts or 0,
        host=place.host,
        slot=place.slot,
    )
    reply = link.enter(asked)
    credentials = Credentials(reply.certificate, key, reply.authorities)
    default = joined_folder.default_folder(reply.job, credentials.identity.uid, reply.name)
    folder = place.state or default
    machine = Joined(
        job=reply.job,
        server=place.server,
        digest=token.digest,
        anchor=link.anchor,
        name=reply.name,
        wanted=place.name,
        secret=reply.secret,
        region=reply.region,
        slots=tuple(reply.slots),
        endpoints=dialled(reply.watch.endpoints, place.server),
        container=reply.container,
        host=place.host or 0,
        hosts=reply.hosts,
        hosts_min=reply.hosts_min,
        rendezvous=place.rendezvous,
    )
    joined_folder.write(folder, machine)
    joined_folder.keep_credentials(folder, credentials)
    write_whole(folder / RUN_FILE, reply.run_file)
    return folder, machine
