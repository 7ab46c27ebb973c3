"""Which GPUs of this machine a learner gets: CUDA_VISIBLE_DEVICES for each process.

A job asks for GPUs as it does in a cluster, by `nvidia.com/gpu` in the limits of its containers;
`atoll run --gpus-per-learner` writes that number there. If nothing in a job asks, the processes
keep the variable of `atoll run`. If anything asks, every process gets GPUs of its own, and those
that ask for none, the shards among them, see none. A container that sets the variable itself keeps
its own value.

The GPUs that there are: those in the CUDA_VISIBLE_DEVICES of `atoll run`, as it names them (by
index, UUID or MIG UUID), else all that `nvidia-smi -L` lists. Indices are given on as indices,
because some libraries read the variable as numbers. Where a GPU is divided by MIG, its parts count
instead of the whole, and everything is named by UUID, since an index cannot name a part.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atoll_operator.api.pods import Container
from atoll_operator.api.spec import Job
from atoll_operator.local import processes
from atoll_operator.local.plan import EVALUATOR, VISIBLE, hosts_of, shard_process
from atoll_protos.errors import SpecError
from atoll_protos.names import slot_name

RESOURCE = "nvidia.com/gpu"
LISTING_SECONDS_MAX = 30.0  # without persistence mode a driver takes seconds to answer
GPU = re.compile(r"GPU (?P<index>\d+): .*\(UUID: (?P<uuid>GPU-[^)]+)\)")
MIG_PART = re.compile(r"\s+MIG .*\(UUID: (?P<uuid>MIG-[^)]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The GPUs that processes may use, as CUDA_VISIBLE_DEVICES names them, and who says so."""

    devices: tuple[str, ...]
    source: str


NONE = Found(devices=(), source="")


def matter(job: Job) -> bool:
    """Whether it matters how many GPUs there are: some drivers take seconds to say it."""
    return bool(asked(job)) or job.spec.learners > 1


def find(environment: Mapping[str, str]) -> Found:
    """The GPUs of this machine that `atoll run` may use."""
    listing, trouble = _listing(environment)
    variable = environment.get(VISIBLE)
    if variable is not None:
        found = visible(variable, listed(listing))
        return Found(devices=found, source=f"{VISIBLE}={variable}")
    return Found(devices=tuple(whole for whole, _ in listed(listing)), source=trouble)


def listed(listing: str) -> tuple[tuple[str, str], ...]:
    """The GPUs in the output of `nvidia-smi -L`: how each is named, and its UUID."""
    gpus: list[tuple[str, str, list[str]]] = []
    for line in listing.splitlines():
        if (gpu := GPU.match(line)) is not None:
            gpus.append((gpu["index"], gpu["uuid"], []))
        elif gpus and (part := MIG_PART.match(line)) is not None:
            gpus[-1][2].append(part["uuid"])
    if not any(parts for _, _, parts in gpus):
        return tuple((index, uuid) for index, uuid, _ in gpus)
    return tuple((name, name) for _, uuid, parts in gpus for name in parts or [uuid])


def visible(variable: str, gpus: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The devices that CUDA sees with this value of its variable; `gpus` as `listed` has them.

    As in CUDA, an entry that names no GPU hides those after it. Without a list of the GPUs only
    -1 and what is no name at all is known to name none.
    """
    found: list[str] = []
    for entry in (each.strip() for each in variable.split(",")):
        by_number = entry.isdecimal() and (not gpus or int(entry) < len(gpus))
        by_uuid = entry.startswith(("GPU-", "MIG-")) and (
            not gpus or entry.startswith("MIG-") or any(u.startswith(entry) for _, u in gpus)
        )
        if entry in found or not (by_number or by_uuid):
            break
        found.append(entry)
    return tuple(found)


def asked(job: Job) -> dict[str, int]:
    """How many GPUs each process asks for, by its name; without those that say nothing."""
    spec = job.spec
    found: dict[str, int] = {}
    for region in spec.regions:
        field, given = "spec.learner.template", _given(spec.learner.template.container)
        if region.pod_overrides.resources:
            field = f"spec.regions[{region.name}].podOverrides"
            given = region.pod_overrides.resources
        count = _count(given, field)
        if count is not None:
            slots = [slot_name(region.name, i) for i in range(region.learners)]
            found |= dict.fromkeys(_processes(job, slots), count)
    if spec.evaluator is not None:
        count = _count(_given(spec.evaluator.template.container), "spec.evaluator.template")
        if count is not None:
            found[EVALUATOR] = count
    return found


def assign(job: Job, found: Found) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES by the name of the process; empty when nothing in the job asks.

    Raises SpecError when the job asks for more GPUs than there are.
    """
    wanted = asked(job)
    if not wanted:
        return {}
    total, there = sum(wanted.values()), len(found.devices)
    if total > there:
        counts = sorted({count for count in wanted.values() if count})
        each = " or ".join(map(str, counts))
        plural = "" if each == "1" else "s"
        kind = "learners" if job.spec.learner.hosts == 1 else "hosts of learners"
        kind = "processes" if wanted.get(EVALUATOR) else kind
        who = f"{sum(map(bool, wanted.values()))} {kind} with {each} GPU{plural} each"
        why = f" ({found.source})" if found.source else ""
        raise SpecError(
            RESOURCE,
            f"{who} need {total}, and this machine has {there}{why}",
            "use fewer learners or GPUs; --gpus-per-learner 0 runs without",
        )
    left = iter(found.devices)
    shards = [shard_process(i) for i in range(job.spec.syncer.shards)]
    names = [*shards, *_processes(job, job.spec.slots), EVALUATOR]
    return {name: ",".join(next(left) for _ in range(wanted.get(name, 0))) for name in names}


def advice(job: Job, found: Found) -> str:
    """What to say of a job that asks for no GPU where each learner could have its own, or ""."""
    there, learners = len(found.devices), job.spec.learners
    each = processes.of(job.spec.learner.template.container)
    learners *= job.spec.learner.hosts
    if asked(job) or not 1 < learners <= there // each:
        return ""
    return f"every learner sees all {there} GPUs; --gpus-per-learner {each} gives each its own"


def _processes(job: Job, slots: Iterable[str]) -> list[str]:
    """The names of the processes of these learners, one for each host."""
    return [name for slot in slots for _, name in hosts_of(job, slot)]


def _listing(environment: Mapping[str, str]) -> tuple[str, str]:
    """The output of `nvidia-smi -L`, and why there is none."""
    command = shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath))
    if command is None:
        return "", "there is no nvidia-smi"
    try:
        done = subprocess.run(
            [command, "-L"],
            capture_output=True,
            text=True,
            timeout=LISTING_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"nvidia-smi: {error}"
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()
        return "", f"nvidia-smi: {words[0] if words else f'exit code {done.returncode}'}"
    return done.stdout, ""


def _given(container: Container) -> Mapping[str, Any]:
    resources = (container.model_extra or {}).get("resources")
    return resources if isinstance(resources, Mapping) else {}


def _count(resources: Mapping[str, Any], field: str) -> int | None:
    limits = resources.get("limits")
    value = limits.get(RESOURCE) if isinstance(limits, Mapping) else None
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).isdecimal():
        problem = f"must be a whole number, got {value!r}"
        raise SpecError(f"{field}: {RESOURCE}", problem, "write it as in nvidia.com/gpu: 1")
    return int(value)
