"""The processes of a job on this machine, in place of pods; pure.

A learner's process gets the command, arguments, variables and folder that its container would have,
so a manifest that trains here trains in a cluster too.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from atoll_operator.api.job.fields import Container, RegionSpec
from atoll_operator.api.job.parsing import under_launcher
from atoll_operator.api.job.process_inputs import EVALUATE, TRAIN
from atoll_operator.api.job.spec import Job
from atoll_operator.local.run_files import (
    CHECKPOINTS_FOLDER,
    LENGTH_FILE,
    RECORD_FOLDER,
    RUN_FILE,
    SLOTS_FILE,
)
from atoll_protos.environment import MEETING_PORT, Env, of_hosts, of_learner, of_process
from atoll_protos.network.addresses import UNIX, joined

EVALUATOR = "evaluator"  # name of its process
VISIBLE = "CUDA_VISIBLE_DEVICES"
Environment = Mapping[str, str]
NOWHERE: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One process: `name` is its slot (SLOT-HOST of several hosts), shard-N or evaluator."""

    role: str
    name: str
    command: tuple[str, ...]
    env: Environment
    folder: str = ""  # empty: the current one
    slot: str = ""  # of a host of several
    shard: int | None = None  # of a shard's process
    endpoint: str = ""  # of a shard's process: where it listens
    host: int = 0
    hosts_needed: int = 1  # with fewer, host 0 among them, its learner does not train
    private: bool = False  # it writes to the run folder alone, and so for its user alone

    @property
    def whole(self) -> str:
        """The learner or shard that it belongs to."""
        return self.slot or self.name


def processes(
    job: Job,
    out: Path,
    endpoints: Sequence[str],
    gpus: Mapping[str, str],
    *,
    new: bool,
    meetings: Mapping[str, int] = NOWHERE,
    record: int = 0,
) -> list[Planned]:
    """Shards first, then learners, then the evaluator.

    `endpoints` are by shard; `meetings`, ports where hosts meet, by slot; `gpus` by process,
    without those that keep the variable of `atoll run`. With `new` no process of this run can have
    run before. Of each slice, `record` merges are recorded.
    """
    shared = shared_environment(out / RUN_FILE, endpoints, out)

    def own(name: str) -> dict[str, str]:
        return shared | ({VISIBLE: gpus[name]} if name in gpus else {})

    planned = [
        _shard(job, shard, endpoint, out, own(shard_process(shard)), record, new=new)
        for shard, endpoint in enumerate(endpoints)
    ]
    for region in job.spec.regions:
        container = container_of(job, region)
        if job.spec.learner.hosts > 1:
            container = launched_container(container)
        for slot in region.slots:
            meeting = meetings.get(slot, MEETING_PORT)
            for host, name in hosts_of(job, slot):
                env = own(name) | of_learner(region=region.name, slot=slot)
                planned.append(_learner(job, name, slot, host, meeting, container, env))
    if job.spec.evaluator is not None:
        container = job.spec.evaluator.template.container
        planned.append(_templated("evaluator", EVALUATOR, container, own(EVALUATOR), EVALUATE))
    return planned


def shared_environment(run_file: Path, endpoints: Sequence[str], out: Path) -> dict[str, str]:
    """Return what all processes have; they write what they do to `out`."""
    return {
        **of_process(run_file=str(run_file), endpoints=",".join(endpoints)),
        Env.TELEMETRY_DIR: str(out),
        "PYTHONUNBUFFERED": "1",  # what a script prints is in its log at once, and in order
        "PYTHONFAULTHANDLER": "1",  # and where it was when it was killed by a fault
    }


def learner_process(slot: str, container: Container, env: Environment) -> Planned:
    """Return the only process of a learner's only host."""
    return _templated("learner", slot, container, env, TRAIN)


def container_of(job: Job, region: RegionSpec) -> Container:
    """Return what trains in a region; without the launcher that several hosts need."""
    template, changes = job.spec.learner.template.container, region.pod_overrides
    command, args = changes.command or template.command, changes.args or template.args
    env = [*template.env, *changes.env]
    return template.model_copy(update={"command": command, "args": args, "env": env})


def container_elsewhere(job: Job, region: str) -> str:
    """Return the same as JSON, for a machine that has folders of its own."""
    spec = next(entry for entry in job.spec.regions if entry.name == region)
    container = container_of(job, spec).model_copy(update={"working_dir": ""})
    if job.spec.learner.hosts > 1 and container.command:  # else it would be this Python's
        container = launched_container(container)
    return container.model_dump_json(by_alias=True)


def launched_container(container: Container) -> Container:
    """Under the launcher, as each host of several needs it."""
    command = container.command or [sys.executable, *TRAIN]
    return container.model_copy(update={"command": under_launcher(command, container.args)})


def endpoints_at(ports: Sequence[int], host: str = "127.0.0.1") -> list[str]:
    """Return the shards' endpoints, by shard."""
    return [joined(host, port) for port in ports]


def endpoints_in(folder: Path, shards: int) -> list[str]:
    """Return the same as Unix sockets in a folder."""
    return [f"{UNIX}{folder / shard_process(shard)}" for shard in range(shards)]


def shard_process(shard: int) -> str:
    return f"shard-{shard}"


def hosts_of(job: Job, slot: str) -> Iterator[tuple[int, str]]:
    hosts = job.spec.learner.hosts
    for host in range(hosts):
        yield host, f"{slot}-{host}" if hosts > 1 else slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Of one learner: `needed` are enough to train; all meet at `first`, host:port of host 0."""

    count: int
    needed: int
    first: str


def host_process(
    slot: str, host: int, hosts: Hosts, container: Container, env: Environment
) -> Planned:
    """One of several hosts; `container` has the launcher."""
    own = of_hosts(
        slot=slot,
        hosts=hosts.count,
        hosts_min=hosts.needed,
        processes=len(env.get(VISIBLE, "").split(",")),
        first_host=hosts.first,
        host=host,
    )
    planned = _templated("learner", f"{slot}-{host}", container, {**env, **own}, TRAIN)
    return replace(planned, slot=slot, host=host, hosts_needed=hosts.needed)


def _learner(
    job: Job, name: str, slot: str, host: int, meeting: int, container: Container, env: Environment
) -> Planned:
    """One host of a learner; of several, with one process for each of its GPUs, else one."""
    learner = job.spec.learner
    if learner.hosts == 1:
        return learner_process(name, container, env)
    first = f"127.0.0.1:{meeting}"
    several = Hosts(count=learner.hosts, needed=learner.hosts_needed, first=first)
    return host_process(slot, host, several, container, env)


def _shard(
    job: Job, shard: int, endpoint: str, out: Path, shared: Environment, record: int, *, new: bool
) -> Planned:
    storage = job.spec.syncer.storage
    checkpoints = job.spec.checkpoint.url
    elsewhere = checkpoints.startswith("file://") and checkpoints != own_checkpoints(out)
    state = storage.folder_of(job.uid) or str(out / "commits")
    words = (
        *("--slots-file", str(out / SLOTS_FILE), "--length-file", str(out / LENGTH_FILE)),
        *("--store", f"{state}/{shard}"),
        *(("--store-endpoint", storage.endpoint) if storage.endpoint else ()),
        *("--tape", str(out / "syncer" / f"{shard}.tape.jsonl"), "--tape-bytes", "0"),
        *("--export", str(out / "export")),
        *(("--record", str(out / RECORD_FOLDER), str(record)) if record else ()),
        *(("--new",) if new else ()),
    )
    own = (sys.executable, "-P", "-m", "atoll_syncer", "--shard", str(shard))
    return Planned(
        role="shard",
        name=shard_process(shard),
        command=(*own, "--listen", endpoint, *words),
        env=shared,
        shard=shard,
        endpoint=endpoint,
        private=not elsewhere,
    )


def own_checkpoints(out: Path) -> str:
    """Where a run's checkpoints are if its manifest names no other place."""
    return f"file://{out / CHECKPOINTS_FOLDER}"


def _templated(
    role: str, name: str, container: Container, base: Environment, default: tuple[str, ...]
) -> Planned:
    """Return a container's command as Kubernetes runs it: `$(VAR)` is expanded, `args` follow."""
    values = dict(base)

    def expanded(text: str) -> str:
        return re.sub(r"\$\((\w+)\)", lambda m: values.get(m[1], m[0]), text)

    for variable in container.env:
        values[variable.name] = expanded(variable.value)
    command = container.command or [sys.executable, *default]
    words = tuple(expanded(word) for word in [*command, *container.args])
    return Planned(role=role, name=name, command=words, env=values, folder=container.working_dir)
