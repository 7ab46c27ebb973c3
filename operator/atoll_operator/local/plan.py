"""The processes of a job on this machine, in place of pods; pure.

`processes` is to local mode what `kube.plan.children` is to a cluster. A learner's process gets
the command, arguments, variables and folder that its container would have, so a manifest that
trains here trains in a cluster too.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll_operator.api.pods import Container
from atoll_operator.api.runfile import EVALUATE, TRAIN
from atoll_operator.api.spec import Job
from atoll_protos.environment import Env, of_learner, of_process
from atoll_protos.names import slot_name

MANIFEST_FILE = "manifest.yaml"  # in the run folder: what was trained
RUN_FILE = "run.json"  # in the run folder: what all processes know, with the present length
SLOTS_FILE = "slots.json"  # in the run folder: the job's learners
EVALUATOR = "evaluator"  # name of its process
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One process. `name` is its slot, shard-N or evaluator; `folder` empty: the current one."""

    role: str
    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    folder: str = ""


def processes(
    job: Job, out: Path, ports: tuple[int, ...], gpus: Mapping[str, str], *, new: bool
) -> list[Planned]:
    """Shards first, then learners, then the evaluator.

    `ports` are by shard; `gpus` is CUDA_VISIBLE_DEVICES by process, without those that keep the
    variable of `atoll run`. With `new`, no process of this run can have run before.
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
            env = {**own(slot), **of_learner(region=region.name, slot=slot)}
            planned.append(_templated("learner", slot, learners, env, TRAIN))
    if job.spec.evaluator is not None:
        container = job.spec.evaluator.template.container
        planned.append(_templated("evaluator", EVALUATOR, container, own(EVALUATOR), EVALUATE))
    return planned


def shard_process(shard: int) -> str:
    """The name of a shard's process."""
    return f"shard-{shard}"


def _shard(shard: int, port: int, out: Path, shared: Mapping[str, str], *, new: bool) -> Planned:
    command = (
        *(sys.executable, "-P", "-m", "atoll_syncer"),
        *("--shard", str(shard), "--listen", f"127.0.0.1:{port}"),
        *("--slots-file", str(out / SLOTS_FILE)),
        *("--store", str(out / "commits" / str(shard))),
        *("--tape", str(out / "syncer" / f"{shard}.tape.jsonl")),
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
