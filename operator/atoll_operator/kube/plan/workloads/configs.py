"""What pods refer to, but for storage: their accounts and ConfigMaps, and the accepted manifest."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll_operator.api.job.process_inputs import expected, length, run_file
from atoll_operator.api.job.spec import Job
from atoll_operator.kube import names
from atoll_operator.kube.observed.observation import Object
from atoll_operator.kube.plan.manifest import accepted
from atoll_operator.kube.plan.owner import JobOwner
from atoll_operator.kube.plan.workloads.rendering import digest
from atoll_protos.job.run_file import RunFile


def account(owner: JobOwner, role: str) -> Object:
    """A service account per role, to give a cloud's identity to shards alone; it has no rights."""
    name = names.account_name(owner.name, role)
    labels = owner.labels(role)
    return owner.child("ServiceAccount", "v1", name, labels, automountServiceAccountToken=False)


def run_config_map(owner: JobOwner, text: str) -> Object:
    """A run file for pods to mount; immutable, so that a running pod never sees another one."""
    labels, name = owner.labels("run"), config_name(owner.name, text)
    data = {names.RUN_FILE: text}
    return owner.child("ConfigMap", "v1", name, labels, data=data, immutable=True)


def slots_map(owner: JobOwner, job: Job, generation: int) -> Object:
    """What a running job may change, for shards to read: its learners, its length, a checkpoint.

    It changes in place, so neither change restarts a shard. It is applied before the learners'
    StatefulSets, so no learner runs that it lacks. `generation` is the job's, which tells shards
    which of two lengths is newer.
    """
    name, labels = names.slots_name(job.name), owner.labels("run")
    listed = expected(job, owner.generations, owner.checkpoint, owner.machines)
    data = {
        names.SLOTS_FILE: listed.to_json(),
        names.LENGTH_FILE: length(job, generation).to_json(),
    }
    return owner.child("ConfigMap", "v1", name, labels, data=data)


def accepted_map(owner: JobOwner, manifest: Mapping[str, Any]) -> Object:
    """The manifest as it was accepted, for the day on which a later one is not (`accepted`)."""
    data = {accepted.SPEC: accepted.text(manifest)}
    labels = owner.labels("manifest")
    return owner.child("ConfigMap", "v1", names.accepted_name(owner.name), labels, data=data)


def shards_file(job: Job) -> RunFile:
    """The run file without regions: no edit of them restarts a shard, which takes every slot."""
    return replace(run_file(job), regions=())


def config_name(job: str, text: str) -> str:
    """The name carries the hash of the file because the ConfigMap is immutable."""
    return f"{job}-run-{digest(text)[:10]}"
