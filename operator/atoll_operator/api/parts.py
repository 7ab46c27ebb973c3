"""The models of the parts of `spec`: learner, regions, syncer, evaluator and the smaller ones."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from atoll_operator.api.model import COUNT_MAX, LEARNERS_MAX, SECONDS_MAX, Model, ShortText
from atoll_operator.api.pods import PodOverrides, Template
from atoll_protos import expected
from atoll_protos.expected import START_SECONDS
from atoll_protos.names import REGION_PATTERN

NAME_CHARACTERS_MAX: Final = 50  # of a job and a region together
HOSTS_NAME_CHARACTERS_MAX: Final = 46  # of both where every learner is a StatefulSet of its own
HOSTS_MAX: Final = 64
SHARDS_MAX: Final = 64


class Learner(Model):
    """What every learner runs."""

    template: Template = Field(
        default=Template(),
        description=(
            "Pod template of every learner. Its first container is the one that trains: give it an"
            " image with Atoll and the script, the command and the resources. What is left out is"
            " filled in; without a command, the built-in byte-level GPT trains. `atoll run` uses"
            " command, args, workingDir and env of that container and its limit of nvidia.com/gpu,"
            " and ignores the rest."
        ),
    )
    hosts: int = Field(
        default=1,
        ge=1,
        le=HOSTS_MAX,
        description=(
            "Number of pods that form one learner. Above 1, every pod runs the command under"
            " atoll-worker launch (a command that is a launcher itself stays as it is) with as many"
            " processes as PET_NPROC_PER_NODE in its env says, else as its container's limit of"
            " nvidia.com/gpu, else one; the processes of all pods are one group of"
            " torch.distributed. A learner that loses a host trains again when that pod has been"
            " made again. The names of the job and of a region together then have at most"
            f" {HOSTS_NAME_CHARACTERS_MAX} characters."
        ),
    )
    hosts_min: int | None = Field(
        default=None,
        ge=1,
        le=HOSTS_MAX,
        description=(
            "Number of hosts with which a learner trains while the others cannot be had, host 0"
            " always among them; left out, it waits for all. It keeps its slot and its place in the"
            " data, and its script has to work with any number of processes in between. At most"
            " hosts."
        ),
    )
    topology_key: str = Field(
        default="",
        max_length=316,
        description=(
            "Label of nodes, such as that of a rack or of a network block. All hosts of a learner"
            " go to nodes with one value of it. Left out, they may be anywhere in their region."
            " Only with hosts above 1. `atoll run` ignores it."
        ),
    )

    @property
    def hosts_needed(self) -> int:
        """Hosts without which a learner does not train."""
        return self.hosts if self.hosts_min is None else self.hosts_min


class RegionNodes(StrEnum):
    """Which nodes the pods of a region may use."""

    REGION = "Region"
    ANY = "Any"


class RegionSpec(Model):
    """One region and its learners."""

    name: str = Field(
        pattern=f"^{REGION_PATTERN.pattern}$",
        max_length=NAME_CHARACTERS_MAX,
        description=(
            "Name of the region, unique in the job. A learner's slot is this name and its number,"
            " as in us-east-0. It does not begin with syncer or evaluator. The names of the job and"
            f" of a region together have at most {NAME_CHARACTERS_MAX} characters."
        ),
    )
    learners: int = Field(
        default=1,
        ge=0,
        le=LEARNERS_MAX,
        description=(
            "Number of learners in this region, each with a whole copy of the model. It may change"
            " at any time and restarts no other learner."
        ),
    )
    pod_overrides: PodOverrides = Field(
        default=PodOverrides(),
        description="What the learners of this region have instead of the template's settings.",
    )
    nodes: RegionNodes = Field(
        default=RegionNodes.REGION,
        strict=False,
        description=(
            "Where one cluster serves several regions: Region: the region's pods, with the shards"
            " and the evaluator if they run in it, go only to nodes whose region label has the name"
            " of this region, whatever else the template selects. Any: the operator does not ask"
            " for that label. `atoll run` ignores it."
        ),
    )


class StorageType(StrEnum):
    """Where shards keep their state."""

    OBJECT_STORE = "ObjectStore"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    EPHEMERAL = "Ephemeral"


class Reclaim(StrEnum):
    """What becomes of the shards' claims when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageSpec(Model):
    """Where shards keep their log."""

    type: StorageType = Field(
        default=StorageType.EPHEMERAL,
        strict=False,
        description=(
            "PersistentVolumeClaim: every shard has a volume, and a lost shard goes on from it."
            " Ephemeral: a shard's state lives and dies with its pod, and is restored from the"
            " learners. ObjectStore is not supported yet. `atoll run` always keeps the state in"
            " the run folder."
        ),
    )
    url: str = Field(
        default="", max_length=2048, description="Address of an ObjectStore. Not supported yet."
    )
    size: str = Field(
        default="10Gi",
        max_length=32,
        pattern=r"^[0-9]+([kMGTP]|[KMGTP]i)?$",
        description=(
            "Size of each shard's volume, for PersistentVolumeClaim. It may grow where the storage"
            " class allows it."
        ),
    )
    storage_class_name: str = Field(
        default="",
        max_length=253,
        description="Storage class of the volumes; left out, the cluster's default class.",
    )
    reclaim: Reclaim = Field(
        default=Reclaim.RETAIN,
        strict=False,
        description=(
            "Whether the shards' volume claims stay (Retain) or go (Delete) when the job is"
            " deleted."
        ),
    )


class ServiceType(StrEnum):
    """How a shard's Service can be reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Expose(Model):
    """How other clusters reach the shards."""

    type: ServiceType = Field(
        default=ServiceType.CLUSTER_IP,
        strict=False,
        description=(
            "Type of each shard's Service. NodePort and LoadBalancer make addresses that other"
            " clusters can reach: status.syncer.endpoints shows them, to be copied into"
            " syncer.endpoints. ClusterIP: the Services are for this cluster alone."
        ),
    )
    annotations: dict[str, ShortText] = Field(
        default={},
        max_length=64,
        description=(
            "Annotations of these Services, such as those by which a cloud's load balancer is told"
            " to have an internal address."
        ),
    )


class TlsMode(StrEnum):
    """Whether the processes of a job prove who they are, and encrypt what they say."""

    REQUIRED = "Required"
    DISABLED = "Disabled"


class IssuerRef(Model):
    """An issuer of cert-manager."""

    name: str = Field(
        min_length=1, max_length=253, description="Name of the Issuer or ClusterIssuer."
    )
    kind: str = Field(
        default="Issuer",
        min_length=1,
        max_length=63,
        description="Its kind: Issuer (of the job's namespace), ClusterIssuer, or another one's.",
    )
    group: str = Field(
        default="cert-manager.io",
        min_length=1,
        max_length=253,
        description="Its API group, for issuers that are not cert-manager's own.",
    )


class Tls(Model):
    """How the processes of a job prove to one another who they are."""

    mode: TlsMode = Field(
        default=TlsMode.REQUIRED,
        strict=False,
        description=(
            "Required: shards, learners, evaluator and operator talk over mutual TLS 1.3, and each"
            " certificate says its role and region. Disabled: plain text, without any proof of who"
            " talks. A run keeps the way in which its pods began to talk: a change comes into"
            " force when the job starts with no pod running, as after spec.suspend. `atoll run`"
            " ignores it: its processes talk over loopback."
        ),
    )
    issuer_ref: IssuerRef | None = Field(
        default=None,
        description=(
            "An issuer of cert-manager that signs the certificates of the job; it has to set"
            " ca.crt, as CA and Vault issuers do and ACME issuers do not. Left out, the operator"
            " makes a certificate authority for the job and renews its certificates."
        ),
    )


class Syncer(Model):
    """The shards."""

    region: str = Field(
        default="",
        max_length=NAME_CHARACTERS_MAX,
        description="Region where the shards and the evaluator run; left out, the first region.",
    )
    shards: int = Field(
        default=1,
        ge=1,
        le=SHARDS_MAX,
        description=(
            "Number of shards. Every fragment's tensors are spread over all shards, so that they"
            " share traffic, memory and work."
        ),
    )
    start_seconds: int = Field(
        default=START_SECONDS,
        ge=0,
        le=expected.SECONDS_MAX,
        description=(
            "Learners begin a run together: those that are ready wait for the others, at most so"
            " many seconds from the first one. Who comes later joins later. 0: nobody waits."
        ),
    )
    storage: StorageSpec = Field(
        default=StorageSpec(),
        description="Where the shards keep their log of committed merges.",
    )
    endpoints: list[ShortText] = Field(
        default=[],
        max_length=SHARDS_MAX,
        description=(
            "host:port of every shard as other clusters reach it, in the shards' order: needed"
            " where the learners of a region run in another cluster than the syncer, and used only"
            " there. In the syncer's own cluster the shards' Services are used. `atoll run`"
            " ignores it."
        ),
    )
    expose: Expose = Field(
        default=Expose(),
        description=(
            "How other clusters reach the shards, where the job has regions in several clusters."
            " `atoll run` ignores it."
        ),
    )
    tls: Tls = Field(
        default=Tls(), description="How the processes of the job prove to one another who they are."
    )
    template: Template = Field(
        default=Template(),
        description=(
            "Pod template of the shards; what is left out is filled in. Mount the volume of"
            " spec.export here."
        ),
    )


class Evaluator(Model):
    """An observer that measures held-out loss on the outer parameters."""

    template: Template = Field(
        default=Template(),
        description=(
            "Pod template of the evaluator; what is left out is filled in. Without a command, the"
            " evaluation of the built-in byte-level GPT runs."
        ),
    )
    every_steps: int = Field(
        default=100, ge=1, le=COUNT_MAX, description="Steps between two evaluations."
    )


class Failure(Model):
    """When lost nodes are given up."""

    node_loss_seconds: int = Field(
        default=20,
        ge=1,
        le=86400,
        description=(
            "Seconds without a sign of life after which a node counts as lost and its pods are"
            " replaced elsewhere, if their sessions with the shards are dead too."
        ),
    )
    storm_percent: int = Field(
        default=50,
        ge=1,
        le=100,
        description=(
            "When more than this percentage of a region's nodes (and at least 3) are lost at once,"
            " nothing is replaced and the condition NodeLossHeld is True: a failed network looks"
            " the same."
        ),
    )
    max_replacements_per_slot: int = Field(
        default=20,
        ge=0,
        le=10_000,
        description=(
            "How often a learner may be moved away from a node within a day, which begins with the"
            " first time."
        ),
    )
    syncer_lost_seconds: int = Field(
        default=3600,
        ge=1,
        le=SECONDS_MAX,
        description=(
            "Seconds after which the learners of a cluster that cannot reach the syncer in another"
            " one are scaled to 0. They come back by themselves when it answers again."
        ),
    )


class Checkpoint(Model):
    """Learners' states, kept in addition to the shards' logs."""

    url: str = Field(default="", max_length=2048, description="Where checkpoints are written.")
    every_steps: int = Field(
        default=1000, ge=1, le=COUNT_MAX, description="Steps between two checkpoints."
    )


class Export(Model):
    """Where the final model goes, and whether there are exports before it."""

    url: str = Field(
        default="",
        max_length=2048,
        pattern=r"^([a-z0-9]+://.+)?$",
        description=(
            "file:///FOLDER, a folder that spec.syncer.template mounts in every shard. Left out,"
            " the model stays on the volume of the only shard, if that has one. Object stores are"
            " not supported yet. `atoll run` always writes to the run folder."
        ),
    )
    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=COUNT_MAX,
        description=(
            "Steps between two exports while the job trains, each into a folder step-N beside the"
            " final model. The last 3 stay. Left out, there is only the final one."
        ),
    )


class FromJob(Model):
    """A job whose state was kept."""

    name: str = Field(
        min_length=1,
        max_length=NAME_CHARACTERS_MAX,
        description="Name of the job, in the same namespace; it may be this job's own.",
    )
    uid: str = Field(
        default="",
        max_length=64,
        description=(
            "UID of the job whose state it is, when jobs of one name have used the same volumes;"
            " left out, the state that was used last."
        ),
    )


class Restore(Model):
    """What another job has left is taken up."""

    from_job: FromJob = Field(
        description=(
            "The job whose run goes on under this one. It must be deleted or Failed, its volume"
            " claims must be there (syncer.storage.reclaim: Retain), and sync, seed and"
            " syncer.shards must have its values."
        )
    )
