"""Names that the operator gives: field managers, annotations, children, ports."""

from typing import Final

GROUP: Final = "atoll.dev"
VERSION: Final = "v1alpha1"
PLURAL: Final = "decoupledtrainingjobs"

CHILDREN_MANAGER: Final = "atoll-children"
STATUS_MANAGER: Final = "atoll-status"

SHARD_PORT: Final = 7700
METRICS_PORT: Final = 9090  # of shards
SHARD_ROLE, LEARNER_ROLE, EVALUATOR_ROLE = "shard", "learner", "evaluator"
RUN_FOLDER: Final = "/etc/atoll"
RUN_FILE: Final = "run.json"
DATA_FOLDER: Final = "/data"

HOSTNAME_FIELD: Final = "metadata.name"  # a node's label may differ, its name cannot
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"


class Annotation:
    """Of children, and of a job."""

    APPLIED: Final = "atoll.dev/applied"  # hash of what was applied: no PATCH while it is equal
    TEMPLATE: Final = "atoll.dev/template"  # hash of a role's pod template
    RUN_HASH: Final = "atoll.dev/run-hash"
    REPLACED: Final = "atoll.dev/replaced"  # {ordinal: [count, uid of the last replaced pod]}
    RELEASE_HOLD: Final = "atoll.dev/release-hold"  # on a job: act in spite of NodeLossHeld


def learner_set(job: str, region: str) -> str:
    """StatefulSet and headless Service of a region."""
    return f"{job}-{region}"


def shard_name(job: str, shard: int) -> str:
    """Deployment, Service and claim of a shard."""
    return f"{job}-syncer-{shard}"


def evaluator_name(job: str) -> str:
    """Deployment of the evaluator."""
    return f"{job}-evaluator"


def account_name(job: str, role: str) -> str:
    """ServiceAccount of a role."""
    return f"{job}-{'syncer' if role == SHARD_ROLE else role}"
