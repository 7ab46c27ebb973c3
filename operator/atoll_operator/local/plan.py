"""The processes of a job on this machine, in place of pods; pure.

`processes` is to local mode what `kube.plan.children` is to a cluster. A learner's process gets
the command, arguments, variables and folder that its container would have, so a manifest that
trains here trains in a cluster too. A learner of several hosts has a process for each, which is a
launcher as in a cluster; its hosts meet on the loopback interface, on a port of their own.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atoll_operator.api.launching import under_launcher
from atoll_operator.api.pods import Container
from atoll_operator.api.runfile import EVALUATE, TRAIN
from atoll_operator.api.spec import Job
from atoll_protos.environment import Env, of_learner, of_process
from atoll_protos.names import slot_name
from atoll_protos.torchrun import MEETING_PORT, of_hosts

MANIFEST_FILE = "manifest.yaml"  # in the run folder: what was trained
RUN_FILE = "run.json"  # in the run folder: what all processes know, with the present length
SLOTS_FILE = "slots.json"  # in the run folder: the job's learners
EVALUATOR = "evaluator"  # name of its process
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One process. `name` is its slot, shard-N or evaluator; `folder` empty: the current one.

    That of a host is SLOT-HOST where a learner has several `hosts`.
    """

    role: str
    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    folder: str = ""
    slot: str = ""  # of a host of several
    host: int = 0
    hosts_needed: int = 1  # with fewer, host 0 among them, its learner does not train

    @property
    def whole(self) -> str:
        """The slot of a learner, whichever host of it this is; else the name."""
        return self.slot or self.name


def processes(
    job: Job,
    out: Path,
    ports: tuple[int, ...],
    gpus: Mapping[str, str],
    *,
    new: bool,
    meetings: tuple[int, ...] = (),
) -> list[Planned]:
    """Shards first, then learners, then the evaluator.

    `ports` are by shard; `meetings` are those where the hosts of each learner meet, and may be left
    out where a learner has but one, or nothing is started; `gpus` is CUDA_VISIBLE_DEVICES by
    process, without those that keep the variable of `atoll run`. With `new`, no process of this run
    can have run before.
    """
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    shared = {
        **of_process(run_file=str(out / RUN_FILE), endpoints=endpoints),
        Env.TELEMETRY_DIR: str(out),
        "PYTHONUNBUFFERED": "1",  # what a script prints is in its log at once, and in order
        "PYTHONFAULTHANDLER": "1",  # and where it was when it was killed by a fault
    }

    def own(name: str) -> dict[str, str]:
        return {**shared, **({VISIBLE: gpus[name]} if name in gpus else {})}

    planned = [
        _shard(shard, port, out, own(shard_process(shard)), new=new)
        for shard, port in enumerate(ports)
    ]
    template = job.spec.learner.template.container
    for region in job.spec.regions:
        changes = region.pod_overrides
        learners = template.model_copy(
            update={
                "command": changes.command or template.command,
                "args": changes.args or template.args,
                "env": [*template.env, *changes.env],
            }
        )
        for ordinal in range(region.learners):
            slot = slot_name(region.name, ordinal)
            for host, name in hosts_of(job, slot):
                env = {**own(name), **of_learner(region=region.name, slot=slot)}
                if job.spec.learner.hosts > 1:
                    meeting = meetings[job.spec.slots.index(slot)] if meetings else MEETING_PORT
                    env |= _among_hosts(job, slot, host, meeting, gpus.get(name, ""))
                planned.append(_learner(job, name, slot, host, learners, env))
    if job.spec.evaluator is not None:
        container = job.spec.evaluator.template.container
        planned.append(_templated("evaluator", EVALUATOR, container, own(EVALUATOR), EVALUATE))
    return planned


def loss_unit(commands: Iterable[Sequence[str]]) -> str:
    """What the learners that run these commands measure a loss in: known of the built-in model."""
    built_in = [TRAIN[-1] in command for command in commands]
    return "loss, nats per byte" if built_in and all(built_in) else "loss"


def loss_unit_of(job: Job) -> str:
    """The same from a job, of which no process need run."""
    shards = tuple(range(job.spec.syncer.shards))  # for ports: nothing is started
    planned = processes(job, Path(), shards, {}, new=False)
    return loss_unit(each.command for each in planned if each.role == "learner")


def shard_process(shard: int) -> str:
    """The name of a shard's process."""
    return f"shard-{shard}"


def hosts_of(job: Job, slot: str) -> Iterator[tuple[int, str]]:
    """The hosts of a learner, and the name of the process of each."""
    hosts = job.spec.learner.hosts
    for host in range(hosts):
        yield host, f"{slot}-{host}" if hosts > 1 else slot


def _among_hosts(job: Job, slot: str, host: int, meeting: int, gpus: str) -> dict[str, str]:
    """The variables of one host of several; one process for each of its GPUs, else one."""
    return of_hosts(
        slot=slot,
        hosts=job.spec.learner.hosts,
        hosts_min=job.spec.learner.hosts_needed,
        processes=max(1, len(gpus.split(","))),
        first_host=f"127.0.0.1:{meeting}",
        host=host,
    )


def _learner(
    job: Job, name: str, slot: str, host: int, container: Container, env: Mapping[str, str]
) -> Planned:
    """One host of a learner: its command, under the launcher where there are several."""
    if job.spec.learner.hosts == 1:
        return _templated("learner", name, container, env, TRAIN)
    command = container.command or [sys.executable, *TRAIN]
    launched = container.model_copy(update={"command": under_launcher(command, container.args)})
    planned = _templated("learner", name, launched, env, TRAIN)
    needed = job.spec.learner.hosts_needed
    return replace(planned, slot=slot, host=host, hosts_needed=needed)


def _shard(shard: int, port: int, out: Path, shared: Mapping[str, str], *, new: bool) -> Planned:
    command = (
        *(sys.executable, "-P", "-m", "atoll_syncer"),
        *("--shard", str(shard), "--listen", f"127.0.0.1:{port}"),
        *("--slots-file", str(out / SLOTS_FILE)),
        *("--store", str(out / "commits" / str(shard))),
        *("--tape", str(out / "syncer" / f"{shard}.tape.jsonl"), "--tape-bytes", "0"),
        *("--export", str(out / "export")),
        *(("--new",) if new else ()),
    )
    return Planned(role="shard", name=shard_process(shard), command=command, env=shared)


def _templated(
    role: str,
    name: str,
    container: Container,
    base: Mapping[str, str],
    default: tuple[str, ...],
) -> Planned:
    """A container's command as Kubernetes runs it: `$(VAR)` is expanded, `args` follow."""
    values = dict(base)
    for each in container.env:
        values[each.name] = _expanded(each.value, values)
    command = container.command or [sys.executable, *default]
    words = tuple(_expanded(word, values) for word in [*command, *container.args])
    return Planned(role=role, name=name, command=words, env=values, folder=container.working_dir)


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda m: values.get(m[1], m[0]), text)
