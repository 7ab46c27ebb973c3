"""The learners of the machine of `atoll join` as processes: their command, GPUs and variables.

The machines of one learner meet at HOST:PORT of host 0: the address by which it reaches the server,
unless a person has named another one. The server passes it on, so it may change. For a job of a
cluster nobody does, so a person names it at each host but the first.
"""

import fcntl
import os
import re
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.api.job.fields import Container, EnvVar
from atoll_operator.local import gpus
from atoll_operator.local.process_plan import (
    VISIBLE,
    Hosts,
    Planned,
    host_process,
    launched_container,
    learner_process,
    shared_environment,
)
from atoll_operator.local.run_files import RUN_FILE
from atoll_operator.local.run_manifest import launched, with_interpreter
from atoll_operator.local.startable import check_startable
from atoll_operator.machines.bundle import TLS_FOLDER, Bundle
from atoll_protos.environment import MEETING_PORT, Env, Torchrun, of_learner
from atoll_protos.errors import SpecError
from atoll_protos.names import slot_name
from atoll_protos.network.addresses import joined, split
from atoll_protos.network.listening import own_address

TEMPLATE: Final = "spec.learner.template"
# Of the server's manifest; a script of one's own is not to begin with code of the server's choice.
LOADS_CODE: Final = re.compile(r"LD_.*|DYLD_.*|PYTHON.*|PATH|BASH_ENV|ENV")

GLOO: Final = "GLOO_SOCKET_IFNAME"  # else gloo takes the address of the host's name: 127.0.1.1
SIOCGIFADDR: Final = 0x8915  # of Linux: the IPv4 address of an interface
NAME_BYTES: Final = 15
IPV6: Final = Path("/proc/net/if_inet6")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the person at this machine has said of its learners; None and () leave it to the job."""

    command: Sequence[str] = ()
    gpus: int | None = None
    processes: int | None = None


def planned(folder: Path, bundle: Bundle, wanted: Wanted, meeting: str = "") -> list[Planned]:
    """One process for each slot, in the current folder; of a host among several, one launcher.

    `meeting` is where these meet. Raises SpecError.
    """
    container = _container(bundle, wanted)
    devices = _devices(container, wanted, len(bundle.slots))
    found = []
    for number, slot in enumerate(bundle.slots):
        env = {
            **shared_environment(folder / RUN_FILE, bundle.endpoints, folder),
            **of_learner(region=bundle.region, slot=slot),
            Env.TLS_DIR: str(folder / TLS_FOLDER),
        }
        if devices:
            env[VISIBLE] = devices[number]
        if bundle.hosts > 1:
            needed = min(bundle.hosts_min or bundle.hosts, bundle.hosts)
            several = Hosts(count=bundle.hosts, needed=needed, first=meeting)
            env |= environment(meeting) if meeting else {}
            found.append(host_process(slot, bundle.host, several, container, env))
        else:
            found.append(learner_process(slot, container, env))
    return found


def check_command(wanted: Wanted, learners: int) -> None:
    """Raise SpecError where there is no such script or program here, or too few GPUs."""
    if wanted.command:
        slots = tuple(slot_name("new", number) for number in range(learners))
        bundle = Bundle(job="", region="new", endpoints=(), container="{}", slots=slots)
        check_startable(planned(Path(), bundle, wanted))


def dialled(endpoints: Sequence[str], server: str) -> tuple[str, ...]:
    """Return the shards' endpoints, where a host that is left out is that of the server."""
    host = split(server)[0]
    return tuple(joined(given or host, port) for given, port in map(split, endpoints))


def _container(bundle: Bundle, wanted: Wanted) -> Container:
    container = Container.model_validate_json(bundle.container)
    if wanted.command:
        command = with_interpreter(wanted.command)
        env = [variable for variable in container.env if not LOADS_CODE.fullmatch(variable.name)]
        container = container.model_copy(update={"command": command, "args": [], "env": env})
    if bundle.hosts > 1:
        container = launched_container(container)
    if wanted.processes is None:
        return container
    command = launched(container.command, wanted.processes, TEMPLATE)
    env = [variable for variable in container.env if variable.name != Torchrun.PROCESSES]
    env.append(EnvVar(name=Torchrun.PROCESSES, value=str(wanted.processes)))
    return container.model_copy(update={"command": command, "env": env})


def _devices(container: Container, wanted: Wanted, learners: int) -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES by learner; empty: nobody asks. Raises SpecError."""
    each = wanted.gpus
    if each is None:
        each = gpus.count_of(gpus.given_to(container), TEMPLATE)
    if each is None:
        return []
    found = gpus.find(os.environ)
    if each * learners > len(found.devices):
        problem = f"{learners} with {each} each, and this machine has {len(found.devices)}"
        raise SpecError("--gpus-per-learner", problem, "use fewer; 0 runs without GPUs")
    return [",".join(found.devices[i * each : (i + 1) * each]) for i in range(learners)]


def checked(rendezvous: str) -> str:
    """HOST:PORT, or empty. Raises SpecError."""
    try:
        if rendezvous:
            split(rendezvous)
    except ValueError as error:
        remedy = "give HOST:PORT of host 0, as the other hosts reach it"
        raise SpecError("--rendezvous", str(error), remedy) from error
    return rendezvous


def place_of(bundle: Bundle) -> str:
    """Where the hosts meet, as far as this one knows; empty: host 0 was not heard of yet."""
    if bundle.host or bundle.rendezvous:
        return bundle.rendezvous
    shards = bundle.server or bundle.endpoints[0]
    return joined(own_address(*split(shards)), MEETING_PORT)


def environment(place: str) -> dict[str, str]:
    """For ranks that meet others at a place: the interface on the way there, where it is known."""
    if GLOO in os.environ:
        return {}
    with suppress(OSError):
        name = interface_of(own_address(*split(place)))
        return {GLOO: name} if name else {}
    return {}


def interface_of(address: str) -> str:
    """Return the name of this machine's interface with an IP address; empty: there is none."""
    names = [name for _, name in socket.if_nameindex()]
    if ":" in address:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        lines = map(str.split, IPV6.read_text(encoding="ascii").splitlines())
        return next((line[-1] for line in lines if line[0] == wanted), "")
    return next((name for name in names if _address_of(name) == address), "")


def _address_of(interface: str) -> str:
    wanted = struct.pack("256s", interface.encode()[:NAME_BYTES])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
        return socket.inet_ntoa(fcntl.ioctl(each, SIOCGIFADDR, wanted)[20:24])
    return ""
