"""Names that the operator gives: annotations, field managers, children, roles, ports.

Names that more than one program uses (labels, environment variables, exit codes) have their home
in `atoll_protos`, the API's kind and version in `atoll_operator.api`.
"""

from typing import Final

from atoll_operator.api.job.spec import API_VERSION, Job
from atoll_protos.names import slot_name

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
