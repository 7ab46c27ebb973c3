"""A job becomes its run file, what all its processes must know, and the list of its learners.

Both are derived from the manifest alone, so the operators of several clusters, and `atoll run`,
write the same bytes for the same manifest.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from atoll_operator.api.job.fields import CheckpointSpec
from atoll_operator.api.job.spec import Job
from atoll_operator.api.job.sync_fields import AdoptMode
from atoll_protos.job.run_file import (
    Checkpoints,
    Expected,
    Limit,
    ListedMachine,
    Momentum,
    Quorum,
    Region,
    RunFile,
    Sync,
)
from atoll_protos.job.schedule import LengthFile

# What a container runs whose template names no command: arguments of a Python interpreter.
TRAIN = ("-m", "atoll_worker", "bytegpt.train:main")
EVALUATE = ("-m", "atoll_worker", "bytegpt.observe:main")

NONE_REVOKED: Final[Mapping[str, int]] = {}
NO_MACHINES: Final[Mapping[str, Sequence[str]]] = {}


def expected(
    job: Job,
    generations: Mapping[str, int] = NONE_REVOKED,
    checkpoint: int = 0,
    machines: Mapping[str, Sequence[str]] = NO_MACHINES,
) -> Expected:
    """List a job's learners; `generations` by region: those below are revoked.

    `checkpoint` is the step of one that somebody has asked for. `machines` are those with
    certificates of their own, and their slots; without any it is shut out.
    """
    limits = (
        Limit(
            region=region.name,
            generation=generations.get(region.name, 0),
            tokens_per_step=region.tokens_per_step,
        )
        for region in job.spec.regions
    )
    return Expected(
        regions=_regions(job),
        start_seconds=job.spec.syncer.start_seconds,
        limits=tuple(limit for limit in limits if limit != Limit(region=limit.region)),
        checkpoint=checkpoint,
        machines=tuple(
            ListedMachine(name=name, slots=tuple(slots))
            for name, slots in machines.items()
            if slots
        ),
    )


def length(job: Job, revision: int) -> LengthFile:
    return LengthFile(revision=revision, steps=job.spec.steps, tokens=job.spec.tokens)


def _regions(job: Job) -> tuple[Region, ...]:
    return tuple(Region(name=r.name, learners=r.learners) for r in job.spec.regions)


def _checkpoints(spec: CheckpointSpec) -> Checkpoints | None:
    if not spec.url:
        return None
    return Checkpoints(url=spec.url, every=spec.every_steps, keep=spec.keep, model=spec.model)


_FIELDS = {  # of the run file, that a manifest calls otherwise
    "job": "metadata.name",
    "seed": "spec.seed",
    "shards": "spec.syncer.shards",
    "sync.lockstep": "spec.sync.preset",
    "sync.grace": "spec.sync.grace.enabled",
    "sync.grace_safety": "spec.sync.grace.safetyPercent",
    "sync.grace_limit": "spec.sync.grace.limit",
    "sync.blend": "spec.sync.adopt",
    "sync.outer_learning_rate": "spec.sync.outer.learningRate",
    "sync.outer_momentum": "spec.sync.outer.momentum",
    "sync.wire_up": "spec.sync.wire.up",
    "sync.wire_down": "spec.sync.wire.down",
    "sync.mean_patterns": "spec.sync.meanPatterns",
    "sync.norm_limit": "spec.sync.normLimit",
}


def field_of(name: str) -> str:
    """Return the manifest's field that a field of the run file comes from: seed -> spec.seed."""
    return _FIELDS.get(name, f"spec.{name}")


def run_file(job: Job) -> RunFile:
    spec, sync = job.spec, job.spec.sync
    momentum = sync.outer.momentum
    return RunFile(
        job=job.name,
        regions=_regions(job),
        shards=spec.syncer.shards,
        seed=spec.seed,
        steps=spec.steps,
        tokens=spec.tokens,
        checkpoint=_checkpoints(spec.checkpoint),
        restore_from=spec.checkpoint.from_,
        uid=job.uid,
        evaluator_every=spec.evaluator.every_steps if spec.evaluator else None,
        sync=Sync(
            fragments=sync.fragments,
            period=sync.period,
            overlap=sync.overlap,
            quorum=Quorum.ALL if sync.quorum is None else sync.quorum,
            grace=sync.grace.enabled,
            grace_safety=sync.grace.safety_percent / 100,
            grace_limit=sync.grace.limit,
            merge=sync.merge,
            blend=sync.adopt.blend_percent / 100 if sync.adopt.mode is AdoptMode.BLEND else 0.0,
            outer_learning_rate=float(sync.outer.learning_rate),
            outer_momentum=Momentum.AUTO if momentum == Momentum.AUTO else float(momentum),
            wire_up=sync.wire.up,
            wire_down=sync.wire.down,
            lockstep=sync.lockstep,
            mean_patterns=tuple(sync.mean_patterns),
            norm_limit=float(sync.norm_limit),
        ),
    )
