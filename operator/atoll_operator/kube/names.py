"""Names that the operator gives, and what all children of a job have from it (`JobOwner`).

Names that more than one program uses (labels, environment variables, exit codes) have their home
in `atoll_protos`, the API's kind and version in `atoll_operator.api`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from atoll_operator.api.job.spec import API_VERSION, KIND, Job
from atoll_protos.names import Label, slot_name

GROUP, _, VERSION = API_VERSION.partition("/")
PLURAL: Final = "decoupledtrainingjobs"

MANAGED_BY: Final = f"{GROUP}/operator"  # spec.managedBy of a job that this operator runs

CHILDREN_MANAGER: Final = "atoll-children"  # field managers of server-side apply
STATUS_MANAGER: Final = "atoll-status"
EVENTS_MANAGER: Final = "atoll-events"
COMPONENT: Final = "atoll-operator"  # source of Events, and managed-by of children

# Roles: values of the label `atoll_protos.names.Label.ROLE`.
SHARD_ROLE: Final = "shard"
LEARNER_ROLE: Final = "learner"
EVALUATOR_ROLE: Final = "evaluator"

SHARD_PORT: Final = 7700
HEALTH_PORT: Final = 7701  # for the kubelet: of shards under TLS, and of learners' launchers
METRICS_PORT: Final = 9090  # of shards
RUN_FOLDER: Final = "/etc/atoll"
RUN_FILE: Final = "run.json"
SLOTS_FOLDER: Final = "/etc/atoll-slots"
SLOTS_FILE: Final = "slots.json"
LENGTH_FILE: Final = "length.json"
TLS_FOLDER: Final = "/etc/atoll-tls"
TLS_VOLUME: Final = "atoll-tls"
DATA_FOLDER: Final = "/data"  # where a shard's volume is mounted
EXPORT_FOLDER: Final = "export"  # in the job's folder of that volume

TRAINING_GATE: Final = f"{GROUP}/training"  # condition of a learner's pod, without which not Ready
HOSTNAME_FIELD: Final = "metadata.name"  # a node's hostname label may differ, its name cannot
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"  # Kueue admits the pods of what carries it
KUEUE_MAY_END: Final = "kueue.x-k8s.io/safe-to-forcefully-terminate"  # on a node that is lost
OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"


class Annotation:
    """Annotations of children, and from RETRY on those of a job, which a person sets."""

    APPLIED: Final = (
        f"{GROUP}/applied"  # hash of what was applied: tells an edit of the job from a revert
    )
    TEMPLATE: Final = f"{GROUP}/template"  # hash of a role's pod template
    RENDERED: Final = f"{GROUP}/rendered"  # for what a workload's template is rendered: `rendering`
    REPLACED: Final = f"{GROUP}/replaced"  # {ordinal: [...]}, see `observation.Replaced`
    ENDED: Final = f"{GROUP}/ended"  # UIDs of pods that Kueue is to let go of (`plan.replacements`)
    SUSPECTS: Final = f"{GROUP}/suspects"  # {node: since when, UNIX seconds}
    RETRY: Final = f"{GROUP}/retry"  # of a failed job: another value lets it try again
    CHECKPOINT: Final = f"{GROUP}/checkpoint"  # the step of one that `atoll checkpoint` asks for
    REVOKED: Final = f"{GROUP}/revoked"  # {region: generation}, by `atoll credentials --revoke`
    MACHINES: Final = f"{GROUP}/machines"  # {name: slots}, by `atoll credentials --machine`
    RELEASE_HOLD: Final = f"{GROUP}/release-hold"  # replace pods in spite of NodeLossHeld


def slots_name(job: str) -> str:
    """Name of the ConfigMap that lists the job's learners."""
    return f"{job}-slots"


def learner_set(job: str, region: str) -> str:
    """Name of a region's StatefulSet and of its headless Service."""
    return f"{job}-{region}"


def hosts_set(job: str, slot: str) -> str:
    """Name of the StatefulSet, and of the headless Service, of one learner of several hosts."""
    return f"{job}-{slot}"


def learner_sets(job: Job) -> dict[str, str]:
    """Region by StatefulSet: one for a region, or one for each learner of several hosts."""
    spec = job.spec
    if spec.learner.hosts == 1:
        return {learner_set(job.name, region.name): region.name for region in spec.regions}
    return {
        hosts_set(job.name, slot_name(region.name, ordinal)): region.name
        for region in spec.regions
        for ordinal in range(region.learners)
    }


def shard_name(job: str, shard: int) -> str:
    """Name of a shard's Deployment, Service and claim."""
    return f"{job}-syncer-{shard}"


def shard_deployments(job: Job) -> dict[str, int]:
    """Return the number of the shard by Deployment."""
    return {shard_name(job.name, number): number for number in range(job.spec.syncer.shards)}


def shards_budget_name(job: str) -> str:
    return f"{job}-syncer"


def learners_budget_name(job: str) -> str:
    return f"{job}-learner"


def evaluator_name(job: str) -> str:
    return f"{job}-evaluator"


def accepted_name(job: str) -> str:
    """Name of the ConfigMap with the manifest that was accepted last."""
    return f"{job}-accepted"


ACCEPTED_SPEC: Final = "spec.json"  # its key there
RENDERED: Final = "rendered.json"  # beside it: for what the job's templates are rendered


def authority_name(job: str) -> str:
    """Name of the Secret with the job's certificate authority; no pod mounts it."""
    return f"{job}-ca"


def leaf_name(job: str, role: str, region: str = "") -> str:
    """Name of the Secret with the certificate of a role; of learners and operators by region."""
    return f"{job}-tls-{role}" + (f"-{region}" if region else "")


def credentials_name(job: str, region: str) -> str:
    """Name of the Secret of a region in a cluster without the syncer, which a person brings."""
    return f"{job}-credentials-{region}"


def account_name(job: str, role: str) -> str:
    return f"{job}-{'syncer' if role == SHARD_ROLE else role}"


INSTANCE = "app.kubernetes.io/instance"
STEP = re.compile(r"[1-9][0-9]{0,15}")
GENERATION_MAX = 999_999_999  # that an identity can spell


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOwner:
    """The job's object: what all of its children have from it."""

    namespace: str
    name: str
    uid: str
    generations: Mapping[str, int] = field(default_factory=dict)
    """By region: the lowest generation of certificates that counts; others have been revoked."""
    machines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Those with certificates of their own, and their slots; without any: it is shut out."""
    checkpoint: int = 0  # the step of one that somebody has asked for

    @classmethod
    def of(cls, raw: dict[str, Any], name: str) -> Self:
        """Return the owner that a job's object is, under the name of the manifest in force."""
        metadata = raw["metadata"]
        annotations = metadata.get("annotations") or {}
        return cls(
            namespace=metadata["namespace"],
            name=name,
            uid=metadata["uid"],
            generations=generations(annotations),
            machines=machines(annotations),
            checkpoint=asked_checkpoint(annotations),
        )

    def labels(self, role: str, **more: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "atoll",
            INSTANCE: self.name,
            "app.kubernetes.io/component": role,
            "app.kubernetes.io/managed-by": COMPONENT,
            Label.JOB: self.name,
            Label.JOB_UID: self.uid,
            Label.ROLE: role,
            **more,
        }

    def selector(self, role: str, **more: str) -> dict[str, str]:
        return {Label.JOB: self.name, Label.JOB_UID: self.uid, Label.ROLE: role, **more}

    def child(
        self, kind: str, api: str, name: str, labels: Mapping[str, str], **body: Any
    ) -> dict[str, Any]:
        """Return an object of the job's namespace that is deleted with the job."""
        owner = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": dict(labels),
            "annotations": {},
            "ownerReferences": [owner],
        }
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def asked_checkpoint(annotations: Mapping[str, Any]) -> int:
    """Read the step that `atoll checkpoint JOB` has written; spoilt text counts as nothing."""
    found = str(annotations.get(Annotation.CHECKPOINT, ""))
    return int(found) if STEP.fullmatch(found) else 0


def generations(annotations: Mapping[str, Any]) -> dict[str, int]:
    """Read what `atoll credentials JOB --revoke REGION` wrote; spoilt text counts as nothing."""
    given = _mapping(annotations, Annotation.REVOKED).items()
    return {region: n for region, n in given if type(n) is int and 0 < n <= GENERATION_MAX}


def machines(annotations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read what `atoll credentials JOB --machine NAME` wrote; spoilt entries are left out."""
    return {
        name: tuple(slots)
        for name, slots in _mapping(annotations, Annotation.MACHINES).items()
        if isinstance(slots, list) and all(isinstance(slot, str) for slot in slots)
    }


def _mapping(annotations: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        found = json.loads(annotations.get(name) or "{}")
    except (TypeError, ValueError, RecursionError):
        found = {}
    return found if isinstance(found, dict) else {}
