"""What pods refer to, but for storage: their accounts and ConfigMaps, and the accepted manifest."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll_operator.api.runfile import expected, length, run_file
from atoll_operator.api.spec import Job
from atoll_operator.kube.names import (
    LENGTH_FILE,
    RUN_FILE,
    SLOTS_FILE,
    accepted_name,
    account_name,
    slots_name,
)
from atoll_operator.kube.observation import Object
from atoll_operator.kube.plan import accepted
from atoll_operator.kube.plan.owner import Owner
from atoll_operator.kube.plan.rendering import RunConfig, digest
from atoll_protos.run import RunFile


def account(owner: Owner, role: str) -> Object:
    """The identity of a role's pods. It has no rights: pods of a job never call the API server.

    There is one per role, so that a cloud's identity can be given to shards alone.
    """
    name = account_name(owner.name, role)
    labels = owner.labels(role)
    return owner.child("ServiceAccount", "v1", name, labels, automountServiceAccountToken=False)


def run_config_map(owner: Owner, file: RunConfig) -> Object:
    """A run file for pods to mount; immutable, so that a running pod never sees another one."""
    labels, name = owner.labels("run"), config_name(owner.name, file)
    data = {RUN_FILE: file.text}
    return owner.child("ConfigMap", "v1", name, labels, data=data, immutable=True)


def slots_map(owner: Owner, job: Job, generation: int) -> Object:
    """What a running job may change, for shards to read: who its learners are, and its length.

    It changes in place, so that neither more learners nor another length restarts a shard. It is
    applied before the learners' StatefulSets, so no learner runs that it lacks. `generation` is the
    job's, which tells shards which of two lengths is newer.
    """
    name, labels = slots_name(job.name), owner.labels("run")
    listed = expected(job, owner.generations)
    data = {SLOTS_FILE: listed.to_json(), LENGTH_FILE: length(job, generation).to_json()}
    return owner.child("ConfigMap", "v1", name, labels, data=data)


def accepted_map(owner: Owner, manifest: Mapping[str, Any]) -> Object:
    """The manifest as it was accepted, for the day on which a later one is not (`accepted`)."""
    data = {accepted.SPEC: accepted.text(manifest)}
    labels = owner.labels("manifest")
    return owner.child("ConfigMap", "v1", accepted_name(owner.name), labels, data=data)


def shards_file(job: Job) -> RunFile:
    """The run file of shards and evaluator: without regions, so that a shard takes every slot.

    So neither a change of `learners` nor a region more or less restarts a shard, and no learner of
    a new slot meets a shard that does not know it yet. That only slots of the job dial is seen to
    by those who start them: the operators, and a learner's own run file (`read_job`).
    """
    return replace(run_file(job), regions=())


def run_config(file: RunFile) -> RunConfig:
    """A run file as pods mount it."""
    return RunConfig(text=file.to_json(), hash=file.hash[:16])


def config_name(job: str, file: RunConfig) -> str:
    """Name of a run file's ConfigMap. It carries the file's hash because it is immutable."""
    return f"{job}-run-{digest(file.text)[:10]}"
