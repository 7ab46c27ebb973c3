"""The learners of the machine of `atoll join` as processes: their command, GPUs and variables."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_operator.api.job.pod_fields import Container, EnvVar
from atoll_operator.local.folder.run_files import RUN_FILE
from atoll_operator.local.planning import gpus
from atoll_operator.local.planning.process_plan import (
    VISIBLE,
    Hosts,
    Planned,
    host_process,
    launched_container,
    learner_process,
    shared_environment,
)
from atoll_operator.local.planning.run_manifest import launched
from atoll_operator.machines.joined import hosts
from atoll_operator.machines.joined.folder import TLS_FOLDER, Joined
from atoll_protos.environment import Env, of_learner
from atoll_protos.errors import SpecError
from atoll_protos.network.addresses import OR, joined, processes_of, split
from atoll_protos.torchrun import Torchrun

TEMPLATE: Final = "spec.learner.template"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the person at this machine has said of its learners; None and () leave it to the job."""

    command: Sequence[str] = ()
    gpus: int | None = None
    processes: int | None = None


def planned(folder: Path, machine: Joined, wanted: Wanted, meeting: str = "") -> list[Planned]:
    """One process for each slot, in the current folder; of a host among several, one launcher.

    `meeting` is where these meet. Raises SpecError.
    """
    container = _container(machine, wanted)
    devices = _devices(container, wanted, len(machine.slots))
    found = []
    for number, slot in enumerate(machine.slots):
        env = {
            **shared_environment(folder / RUN_FILE, machine.endpoints, folder),
            **of_learner(region=machine.region, slot=slot),
            Env.TLS_DIR: str(folder / TLS_FOLDER),
        }
        if devices:
            env[VISIBLE] = devices[number]
        if machine.hosts > 1:
            several = Hosts(count=machine.hosts, needed=machine.hosts_min, first=meeting)
            env |= hosts.environment(meeting) if meeting else {}
            found.append(host_process(slot, machine.host, several, container, env))
        else:
            found.append(learner_process(slot, container, env))
    return found


def dialled(endpoints: Sequence[str], server: str) -> tuple[str, ...]:
    """The shards' endpoints, where a host that is left out is that of the server."""
    host = split(server)[0]
    return tuple(_dialled(each, host) for each in endpoints)


def _dialled(endpoint: str, host: str) -> str:
    addresses = [split(each) for each in processes_of(endpoint)]
    if len(addresses) > 1 and any(not given for given, _ in addresses):
        host = _ip(host)  # gRPC takes several addresses of one shard only as IP addresses
    return OR.join(joined(given or host, port) for given, port in addresses)


def _ip(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return host


def _container(machine: Joined, wanted: Wanted) -> Container:
    container = Container.model_validate_json(machine.container)
    if wanted.command:
        changed = {"command": _with_interpreter(wanted.command), "args": []}
        container = container.model_copy(update=changed)
    if machine.hosts > 1:
        container = launched_container(container)
    if wanted.processes is None:
        return container
    command = launched(container.command, wanted.processes, TEMPLATE)
    env = [each for each in container.env if each.name != Torchrun.PROCESSES]
    env.append(EnvVar(name=Torchrun.PROCESSES, value=str(wanted.processes)))
    return container.model_copy(update={"command": command, "env": env})


def _with_interpreter(command: Sequence[str]) -> list[str]:
    return ["python", *command] if command[0].endswith(".py") else [*command]


def _devices(container: Container, wanted: Wanted, learners: int) -> list[str]:
    """The value of CUDA_VISIBLE_DEVICES by learner; empty: nobody asks. Raises SpecError."""
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
