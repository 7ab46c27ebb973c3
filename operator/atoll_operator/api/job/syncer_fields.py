"""The model of `spec.syncer`: storage, address, certificates and pods of the shards."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from atoll_operator.api.job.model_base import BUCKET, NAME_CHARACTERS_MAX, Model, ShortText
from atoll_operator.api.job.pod_fields import Template
from atoll_protos.job import expected
from atoll_protos.job.expected import START_SECONDS

SHARDS_MAX: Final = 64


class StorageType(StrEnum):
    """Where shards keep their state."""

    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    OBJECT_STORE = "ObjectStore"
    EPHEMERAL = "Ephemeral"


class Reclaim(StrEnum):
    """What becomes of the shards' claims when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageSpec(Model):
    """Where shards keep their log."""

    type: StorageType = Field(default=StorageType.EPHEMERAL, strict=False)
    """PersistentVolumeClaim: every shard has a volume, and a lost shard continues from it.
    ObjectStore: the state is in a bucket, and a lost shard continues from it on any node.
    Ephemeral: a shard's state lives and dies with its pod, and is restored from the learners.
    `atoll run` keeps the state in the run folder, unless it is ObjectStore."""
    url: str = Field(default="", max_length=1024, pattern=rf"^({BUCKET})?$")
    """For ObjectStore, which needs it: s3://BUCKET/PATH, gs://BUCKET/PATH or
    az://ACCOUNT/CONTAINER/PATH. A job has a folder there, named by its UID."""
    endpoint: str = Field(default="", max_length=2048, pattern=r"^(https?://\S+)?$")
    """For ObjectStore: where a server other than the provider's own answers, as in
    https://minio.example:9000."""
    secret: str = Field(default="", max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$")
    """For ObjectStore: a Secret whose keys the shards get as variables, such as AWS_ACCESS_KEY_ID.
    Left out, the service account of syncer.template has the rights. `atoll run` takes its own
    variables."""
    size: str = Field(default="10Gi", max_length=32, pattern=r"^[0-9]+([kMGTP]|[KMGTP]i)?$")
    """Size of each shard's volume, for PersistentVolumeClaim. It may grow where the storage class
    allows it; a smaller one is taken back as far as the volume has not grown."""
    storage_class_name: str = Field(default="", max_length=253)
    """Storage class of the volumes; left out, the cluster's default class."""
    reclaim: Reclaim = Field(default=Reclaim.RETAIN, strict=False)
    """Whether the shards' volume claims stay (Retain) or go (Delete) when the job is deleted."""

    @property
    def is_shared(self) -> bool:
        """Whether several pods of a shard reach its state."""
        return self.type is StorageType.OBJECT_STORE

    @property
    def has_claims(self) -> bool:
        return self.type is StorageType.PERSISTENT_VOLUME_CLAIM

    @property
    def outlives_pods(self) -> bool:
        return self.type is not StorageType.EPHEMERAL

    def folder_of(self, uid: str) -> str:
        """URL of a job's folder in the bucket; empty: its state is in none."""
        return f"{self.url}/{uid}" if self.url else ""


class ServiceType(StrEnum):
    """How a shard's Service can be reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Expose(Model):
    """How other clusters reach the shards."""

    type: ServiceType = Field(default=ServiceType.CLUSTER_IP, strict=False)
    """Type of each shard's Service. NodePort and LoadBalancer make addresses that other clusters
    can reach: status.syncer.endpoints shows them, to be copied into syncer.endpoints. ClusterIP:
    the Services are for this cluster alone."""
    annotations: dict[str, ShortText] = Field(default={}, max_length=64)
    """Annotations of these Services, such as those by which a cloud's load balancer is told to have
    an internal address."""


class TlsMode(StrEnum):
    """Whether the processes of a job prove who they are, and encrypt what they say."""

    REQUIRED = "Required"
    DISABLED = "Disabled"


class IssuerRef(Model):
    """An issuer of cert-manager."""

    name: str = Field(min_length=1, max_length=253)
    """Name of the Issuer or ClusterIssuer."""
    kind: str = Field(default="Issuer", min_length=1, max_length=63)
    """Its kind: Issuer (of the job's namespace), ClusterIssuer, or another one's."""
    group: str = Field(default="cert-manager.io", min_length=1, max_length=253)
    """Its API group, for issuers that are not cert-manager's own."""


class Tls(Model):
    """How the processes of a job prove to one another who they are."""

    mode: TlsMode = Field(default=TlsMode.REQUIRED, strict=False)
    """Required: shards, learners, evaluator and operator talk over mutual TLS 1.3, with
    certificates. Disabled: plain text. A change comes into force when the job starts with no pod
    running, as after spec.suspend. `atoll run` ignores it."""
    issuer_ref: IssuerRef | None = None
    """An issuer of cert-manager that signs the certificates of the job; it has to set ca.crt. Left
    out, the operator makes an authority for the job and renews its certificates."""


class Syncer(Model):
    """The shards."""

    region: str = Field(default="", max_length=NAME_CHARACTERS_MAX)
    """Region where the shards and the evaluator run; left out, the first region."""
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX)
    """Number of shards. Every fragment's tensors are spread over all shards, so that they share
    traffic, memory and work."""
    start_seconds: int = Field(default=START_SECONDS, ge=0, le=expected.SECONDS_MAX)
    """Learners begin a run together: those that are ready wait for the others, at most so many
    seconds. 0: they do not wait."""
    storage: StorageSpec = StorageSpec()
    """Where the shards keep their log of committed merges."""
    standby: bool = False
    """Each shard has a second process that waits, and takes over within seconds when the first one
    is lost. It needs storage that both reach: ObjectStore. The storage of `atoll run` is a folder
    that both reach. It may change while the job runs."""
    endpoints: list[ShortText] = Field(default=[], max_length=SHARDS_MAX)
    """host:port of every shard as other clusters reach it, in the shards' order, an IPv6 address in
    brackets; for learners in another cluster than the syncer. `atoll run` ignores it."""
    expose: Expose = Expose()
    """How other clusters reach the shards, where the job has regions in several clusters. `atoll
    run` ignores it."""
    tls: Tls = Tls()
    """How the processes of the job prove to one another who they are."""
    template: Template = Template()
    """Pod template of the shards; what is left out is filled in. Mount the volume of spec.export
    here. A container without resources asks for 100m of CPU, so that it answers on a busy node."""
