"""A job becomes a run file and the processes that local mode starts in place of pods; pure."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atoll_operator.api.spec import WAITING_PRESETS, AdoptMode, Container, EnvVar, Job
from atoll_protos.codecs import Wire
from atoll_protos.names import Env, slot_name
from atoll_protos.run import Merge, Region, RunFile, Storage, Sync

TRAIN = ("-m", "atoll_worker", "bytegpt.train:main")
EVALUATE = ("-m", "atoll_worker", "bytegpt.observe:main")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One process: `name` is its slot, shard-N or evaluator."""

    role: str
    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    folder: str = ""


def run_file(job: Job) -> RunFile:
    """What the processes must know."""
    spec, sync = job.spec, job.spec.sync
    return RunFile(
        job=job.name,
        regions=tuple(Region(name=r.name, learners=r.learners) for r in spec.regions),
        syncer_region=spec.syncer.region,
        shards=spec.syncer.shards,
        seed=spec.seed,
        steps=spec.steps,
        tokens=spec.tokens,
        evaluator_every=spec.evaluator.every_steps if spec.evaluator else None,
        storage=Storage(type=str(spec.syncer.storage.type), url=spec.syncer.storage.url),
        sync=Sync(
            fragments=sync.fragments,
            period=sync.period,
            overlap=sync.overlap,
            quorum=sync.quorum,
            grace=sync.grace.enabled,
            grace_safety=sync.grace.safety_percent / 100,
            merge=Merge(sync.merge),
            blend=sync.adopt.blend_percent / 100 if sync.adopt.mode is AdoptMode.BLEND else 0.0,
            outer_learning_rate=float(sync.outer.learning_rate),
            outer_momentum=float(sync.outer.momentum),
            wire_up=Wire(sync.wire.up),
            wire_down=Wire(sync.wire.down),
            lockstep=sync.overlap == 0 or sync.preset in WAITING_PRESETS,
            mean_patterns=tuple(sync.mean_patterns),
        ),
    )


def ignored(job: Job) -> list[str]:
    """What local mode leaves to clusters, a line for each."""
    given = sorted(job.spec.learner.template.container.model_extra or {})
    lines = [f"spec.learner.template: {', '.join(given)} is for clusters only"] if given else []
    for region in job.spec.regions:
        own = region.pod_overrides
        given = sorted(own.model_dump(by_alias=True, exclude_unset=True, exclude={"env", "args"}))
        if given:
            where = f"spec.regions[{region.name}].podOverrides"
            lines.append(f"{where}: {', '.join(given)} is for clusters only")
    if job.spec.learner.hosts > 1:
        lines.append("spec.learner.hosts: a learner is one process here")
    return lines


def processes(job: Job, out: Path, ports: tuple[int, ...], *, new: bool) -> list[Planned]:
    """Shards first, then learners, then the evaluator."""
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    shared = {
        Env.RUN_FILE: str(out / "run.json"),
        Env.ENDPOINTS: endpoints,
        Env.TELEMETRY_DIR: str(out),
        "OMP_NUM_THREADS": "1",
    }
    planned = [_shard(shard, port, out, shared, new=new) for shard, port in enumerate(ports)]
    template = job.spec.learner.template.container
    for region in job.spec.regions:
        for ordinal in range(region.learners):
            slot = slot_name(region.name, ordinal)
            env = {**shared, Env.SLOT: slot, Env.REGION: region.name}
            over = region.pod_overrides
            args = over.args or template.args
            planned.append(
                _templated("learner", slot, template, [*template.env, *over.env], args, env, TRAIN)
            )
    if job.spec.evaluator is not None:
        own = job.spec.evaluator.template.container
        planned.append(
            _templated("evaluator", "evaluator", own, own.env, own.args, shared, EVALUATE)
        )
    return planned


def _shard(shard: int, port: int, out: Path, shared: Mapping[str, str], *, new: bool) -> Planned:
    command = (
        *(sys.executable, "-P", "-m", "atoll_syncer"),
        *("--shard", str(shard), "--listen", f"127.0.0.1:{port}"),
        *("--store", str(out / "commits" / str(shard))),
        *("--tape", str(out / "syncer" / f"{shard}.tape.jsonl")),
        *("--export", str(out / "export")),
        *(("--new",) if new else ()),
    )
    return Planned(role="shard", name=f"shard-{shard}", command=command, env=shared)


def _templated(
    role: str,
    name: str,
    container: Container,
    env: list[EnvVar],
    args: list[str],
    base: Mapping[str, str],
    default: tuple[str, ...],
) -> Planned:
    """A container's command as Kubernetes runs it: `$(VAR)` is expanded, `args` follow."""
    values = dict(base)
    for each in env:
        values[each.name] = _expanded(each.value, values)
    command = container.command or [sys.executable, *default]
    words = tuple(_expanded(word, values) for word in [*command, *args])
    return Planned(role=role, name=name, command=words, env=values, folder=container.working_dir)


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda m: values.get(m[1], m[0]), text)
