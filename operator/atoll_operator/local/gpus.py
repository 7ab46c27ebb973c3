"""Which GPUs of this machine a learner gets: CUDA_VISIBLE_DEVICES for each process.

If nothing in a job asks for nvidia.com/gpu in its containers' limits, the processes keep the
variable of `atoll run`. If anything asks, every process gets GPUs of its own, and those that ask
for none, the shards among them, see none. A container that sets the variable itself keeps its own
value.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from atoll_operator.api.job.fields import Container
from atoll_operator.api.job.parsing import is_launched
from atoll_operator.api.job.spec import Job
from atoll_operator.local.process_plan import EVALUATOR, VISIBLE, hosts_of, shard_process
from atoll_protos.environment import Torchrun
from atoll_protos.errors import SpecError

RESOURCE = "nvidia.com/gpu"
LIST_SECONDS_MAX = 30.0  # without persistence mode a driver takes seconds to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpus:
    """The GPUs that processes may use, as CUDA_VISIBLE_DEVICES names them, and who says so."""

    devices: tuple[str, ...] = ()
    source: str = ""


def matter(job: Job) -> bool:
    """Whether it matters how many GPUs there are: some drivers take seconds to say it."""
    return bool(asked(job)) or job.spec.learners > 1


def find(environment: Mapping[str, str]) -> VisibleGpus:
    variable = environment.get(VISIBLE)
    if variable is not None:  # CUDA uses none of those behind an entry that is no GPU, such as -1
        names = takewhile(lambda name: name not in ("", "-1"), map(str.strip, variable.split(",")))
        return VisibleGpus(devices=tuple(names), source=f"{VISIBLE}={variable}")
    listing, trouble = _listing(environment)
    count = sum(line.startswith("GPU ") for line in listing.splitlines())
    return VisibleGpus(devices=tuple(map(str, range(count))), source=trouble)


def asked(job: Job) -> dict[str, int]:
    """How many GPUs each process asks for, by its name; without those that say nothing."""
    found: dict[str, int | None] = {}
    for region in job.spec.regions:
        own, field = region.pod_overrides.resources, f"spec.regions[{region.name}].podOverrides"
        if not own:
            own, field = given_to(job.spec.learner.template.container), "spec.learner.template"
        found |= dict.fromkeys(_processes(job, region.slots), count_of(own, field))
    if (evaluator := job.spec.evaluator) is not None:
        found[EVALUATOR] = count_of(
            given_to(evaluator.template.container), "spec.evaluator.template"
        )
    return {name: count for name, count in found.items() if count is not None}


def assign(
    job: Job, found: VisibleGpus, taken: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """By process; empty when nothing in the job asks. Raises SpecError where there are too few.

    Processes of the job that have some, by `taken`, keep them.
    """
    wanted = asked(job)
    if not wanted:
        return {}
    total, there = sum(wanted.values()), len(found.devices)
    if total > there:
        each = " or ".join(map(str, sorted(set(wanted.values()) - {0})))
        plural = "" if each == "1" else "s"
        kind = "learners" if job.spec.learner.hosts == 1 else "hosts of learners"
        kind = "processes" if wanted.get(EVALUATOR) else kind
        who = f"{sum(map(bool, wanted.values()))} {kind} with {each} GPU{plural} each"
        why = f" ({found.source})" if found.source else ""
        problem = f"{who} need {total}, and this machine has {there}{why}"
        remedy = "use fewer learners or GPUs; --gpus-per-learner 0 runs without"
        raise SpecError(RESOURCE, problem, remedy)
    shards = [shard_process(i) for i in range(job.spec.syncer.shards)]
    names = [*shards, *_processes(job, job.spec.slots), EVALUATOR]
    kept = {name: taken[name] for name in names if name in taken}
    used = {device for devices in kept.values() for device in devices.split(",")}
    left = (device for device in found.devices if device not in used)
    new = (name for name in names if name not in kept)
    given = {name: ",".join(next(left) for _ in range(wanted.get(name, 0))) for name in new}
    return kept | given


def advice(job: Job, found: VisibleGpus) -> str:
    """Describe a job that asks for no GPU where each learner could have its own, or return ""."""
    there, learners = len(found.devices), job.spec.learners * job.spec.learner.hosts
    each = processes_of(job.spec.learner.template.container)
    if asked(job) or not 1 < learners <= there // each:
        return ""
    return f"every learner sees all {there} GPUs; --gpus-per-learner {each} gives each its own"


def processes_of(container: Container) -> int:
    """How many processes a learner of this container is; 1 where that is not known."""
    values = [variable.value for variable in container.env if variable.name == Torchrun.PROCESSES]
    known = values and values[-1].isdecimal() and is_launched(container.command)
    return max(1, int(values[-1])) if known else 1


def _processes(job: Job, slots: Iterable[str]) -> list[str]:
    return [name for slot in slots for _, name in hosts_of(job, slot)]


def _listing(environment: Mapping[str, str]) -> tuple[str, str]:
    command = shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath))
    if command is None:
        return "", "there is no nvidia-smi"
    try:
        done = subprocess.run(
            [command, "-L"], capture_output=True, text=True, timeout=LIST_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"nvidia-smi: {error}"
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()
        return "", f"nvidia-smi: {words[0] if words else f'exit code {done.returncode}'}"
    return done.stdout, ""


def given_to(container: Container) -> Any:
    return (container.model_extra or {}).get("resources")


def count_of(resources: Any, field: str) -> int | None:
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    value = limits.get(RESOURCE) if isinstance(limits, Mapping) else None
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).isdecimal():
        problem = f"must be a whole number, got {value!r}"
        raise SpecError(f"{field}: {RESOURCE}", problem, "write it as in nvidia.com/gpu: 1")
    return int(value)
