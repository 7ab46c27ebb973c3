"""The models of all of `spec` but `spec.sync`.

The cluster checks a pod template: its models are open. Where lists are merged (`kube.plan.pods`),
the key that distinguishes entries is required.
"""

import ast
import difflib
import inspect
from collections.abc import Collection
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from atoll_protos.job import run_file
from atoll_protos.job.run_file import START_SECONDS
from atoll_protos.names import REGION_PATTERN, slot_name

LEARNERS_MAX: Final = 1000  # of a region
LEARNER_PODS_MAX: Final = 10_000  # of a job; an install allows fewer
NAME_CHARACTERS_MAX: Final = 50  # of a job and a region together
REGIONS_MAX: Final = 64
COUNT_MAX: Final = (1 << 53) - 1  # JSON's whole numbers
SECONDS_MAX: Final = 10 * 365 * 24 * 3600
BUCKET: Final = (  # the URL of a folder in a bucket
    r"((s3|gs)://[a-z0-9][a-z0-9._-]*|az://[a-z0-9]+/[a-z0-9-]+)(/[A-Za-z0-9_][A-Za-z0-9._=-]*)*"
)


def _described(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Make the text below a field its description; read only when a schema is asked for."""
    defined = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(defined, ast.ClassDef)
    for pair in pairwise(defined.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(field)), ast.Expr(value=ast.Constant(str(text))):
                alias = model.model_fields[field].alias
                schema["properties"][alias]["description"] = " ".join(text.split())


IN_CAMEL_CASE: Final = ConfigDict(
    alias_generator=to_camel, populate_by_name=True, frozen=True, json_schema_extra=_described
)
ShortText = Annotated[str, Field(max_length=253)]


class Model(BaseModel):
    """Fields in camelCase; unknown fields are errors, and a value cannot change.

    The text below a field is its description in the CRD and in docs/spec.md.
    """

    model_config = ConfigDict(**IN_CAMEL_CASE, extra="forbid", strict=True)


def meant(name: str, known: Collection[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else "remove it or fix its spelling"


def fields_at(model: type[Model], path: Collection[str | int]) -> list[str]:
    for part in path:
        if isinstance(part, str):
            fields = model.model_fields.values()
            model = next(_models(field.annotation) for field in fields if field.alias == part)[0]
    return [field.alias for field in model.model_fields.values() if field.alias]


def _models(kind: Any) -> list[type[Model]]:
    """Return the models in an annotation such as `list[X]` or `X | None`."""
    if isinstance(kind, type) and issubclass(kind, Model):
        return [kind]
    return [found for arg in get_args(kind) for found in _models(arg)]


AnnotationValue = Annotated[str, Field(max_length=16_384)]


class OpenObject(BaseModel):
    """An object of Kubernetes: the fields that are read here, and any other."""

    model_config = ConfigDict(**IN_CAMEL_CASE, extra="allow")


class EnvVar(OpenObject):
    """One environment variable of a container; local mode uses plain values only."""

    name: str = Field(min_length=1)
    """Name of the variable."""
    value: str = ""
    """Its value; $(OTHER) is replaced as in any pod."""


class Named(OpenObject):
    """An entry of a list in which names are unique: a volume, an init container, a claim."""

    name: str = Field(min_length=1)
    """Name of the entry, unique in its list."""


class Mount(OpenObject):
    """A volume mount; paths are unique in a container."""

    mount_path: str = Field(min_length=1)
    """Path of the mount, unique in a container."""


class Spread(OpenObject):
    """A topology spread constraint; keys are unique here."""

    topology_key: str = Field(min_length=1)
    """Label of nodes over which pods spread."""


class Container(OpenObject):
    """The fields of a container that local mode uses; a cluster uses all of them."""

    command: list[str] = Field(default=[])
    args: list[str] = Field(default=[])
    working_dir: str = ""
    env: list[EnvVar] = Field(default=[])


class PodSpec(OpenObject):
    """A pod's containers."""

    containers: list[Container] = Field(default=[])


class Template(OpenObject):
    """A pod template."""

    spec: PodSpec = PodSpec()

    @property
    def container(self) -> Container:
        return self.spec.containers[0] if self.spec.containers else Container()


class PodOverrides(Model):
    """What a region changes in the template; an empty value changes nothing."""

    labels: dict[str, str] = Field(default={}, max_length=64)
    """Added to those of the pods, over equal ones; the StatefulSet has them too, for queues."""
    annotations: dict[str, AnnotationValue] = Field(default={}, max_length=64)
    """Added to those of the pods, over equal ones."""
    image: str = Field(default="", max_length=1024)
    """Replaces that of the learner's container."""
    command: list[str] = Field(default=[], max_length=128)
    """Replaces that of the learner's container."""
    args: list[str] = Field(default=[], max_length=128)
    """Replaces those of the learner's container."""
    env: list[EnvVar] = Field(default=[], max_length=128)
    """Variables, merged by name."""
    env_from: list[dict[str, Any]] = Field(default=[], max_length=32)
    """Sources of variables, added after the template's."""
    resources: dict[str, Any] = Field(default={})
    """Replaces those of the learner's container."""
    resource_claims: list[Named] = Field(default=[], max_length=32)
    """Claims of devices, merged by name."""
    volumes: list[Named] = Field(default=[], max_length=64)
    """Volumes; one replaces that of its name."""
    volume_mounts: list[Mount] = Field(default=[], max_length=64)
    """Mounts of the learner's container; one replaces that of its mountPath."""
    init_containers: list[Named] = Field(default=[], max_length=16)
    """Init containers; the fields of one replace those of its name, but env and volumeMounts are
    merged as above."""
    service_account_name: str = Field(default="", max_length=253)
    """Replaces the template's."""
    image_pull_secrets: list[Named] = Field(default=[], max_length=16)
    """Added to the template's."""
    security_context: dict[str, Any] = Field(default={})
    """Security context of the pods; its fields replace the template's."""
    container_security_context: dict[str, Any] = Field(default={})
    """Security context of the learner's container; its fields replace the template's."""
    node_selector: dict[str, str] = Field(default={}, max_length=32)
    """Added to the template's, and to the region's label where one cluster serves several."""
    affinity: dict[str, Any] = Field(default={})
    """Its nodeAffinity, podAffinity and podAntiAffinity each replace the template's."""
    tolerations: list[dict[str, Any]] = Field(default=[], max_length=32)
    """Added to the template's."""
    topology_spread_constraints: list[Spread] = Field(default=[], max_length=16)
    """Constraints; one replaces that of its topologyKey."""
    priority_class_name: str = Field(default="", max_length=253)
    """Replaces the template's."""
    runtime_class_name: str = Field(default="", max_length=253)
    """Replaces the template's."""
    scheduler_name: str = Field(default="", max_length=253)
    """Replaces the template's."""


HOSTS_NAME_CHARACTERS_MAX: Final = 46  # of both where every learner is a StatefulSet of its own
HOSTS_MAX: Final = 64


class LearnerSpec(Model):
    """What every learner runs."""

    template: Template = Template()
    """Pod template of every learner. Its first container is the one that trains: give it an image
    with Atoll and the script, the command and the resources. Without a command, the built-in
    byte-level GPT trains. `atoll run` uses command, args, workingDir, env and the limit of
    nvidia.com/gpu of that container."""
    hosts: int = Field(
        default=1,
        ge=1,
        le=HOSTS_MAX,
        description=(
            "Number of pods that form one learner. Above 1, every pod runs the command under"
            " atoll-worker launch; a command that is a launcher itself stays as it is. It starts"
            " PET_NPROC_PER_NODE processes, else as many as its container's limit of"
            " nvidia.com/gpu, else one. The names of the job and of a region together then have"
            " at most"
            f" {HOSTS_NAME_CHARACTERS_MAX} characters."
        ),
    )
    hosts_min: int | None = Field(default=None, ge=1, le=HOSTS_MAX)
    """Number of hosts with which a learner trains while the others cannot be had, host 0 always
    among them; left out, it waits for all. Its script has to work with any number of processes in
    between. At most hosts."""
    topology_key: str = Field(default="", max_length=316)
    """Label of nodes, such as that of a rack or of a network block. All hosts of a learner go to
    nodes with one value of it. Only with hosts above 1. `atoll run` ignores it."""

    @property
    def hosts_needed(self) -> int:
        return self.hosts if self.hosts_min is None else self.hosts_min


class RegionPlacement(StrEnum):
    """On which nodes the pods of a region may be."""

    REGION = "Region"
    ANYWHERE = "Anywhere"


class LinkSpec(Model):
    """The network link of a region to the syncer, as its owner expects it."""

    megabits_per_second: int = Field(ge=1, le=COUNT_MAX)
    """What it carries in each direction at once."""
    round_trip_milliseconds: int = Field(default=0, ge=0, le=COUNT_MAX)
    """Time to the syncer and back. Not used for the region of the syncer."""


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
    learners: int = Field(default=1, ge=0, le=LEARNERS_MAX)
    """Number of learners in this region, each with a whole copy of the model. It may change at any
    time and restarts no other learner."""
    tokens_per_step: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """The most tokens that a learner of this region may report for a step. What is above counts as
    that, in the job's length and in merges, and Degraded names it. Absent: no limit."""
    link: LinkSpec | None = None
    """Network link between this region and the syncer; of the syncer's own region, its uplink to
    all others. It changes nothing in the training: `atoll plan` computes with it, and with
    spec.sizing Accepted and `atoll run` warn of a link that will not hold."""
    pod_overrides: PodOverrides = PodOverrides()
    """What the learners of this region have instead of the template's settings."""
    placement: RegionPlacement = Field(default=RegionPlacement.REGION, strict=False)
    """Where one cluster serves several regions: Region: the region's pods, also shards and
    evaluator, go only to nodes whose region label has its name. Anywhere: the operator does not ask
    for that label. `atoll run` ignores it."""

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot_name(self.name, ordinal) for ordinal in range(self.learners))


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


class Tls(Model):
    """How the processes of a job prove to one another who they are."""

    mode: TlsMode = Field(default=TlsMode.REQUIRED, strict=False)
    """Required: shards, learners, evaluator and operator talk over mutual TLS 1.3, with
    certificates. Disabled: plain text. A change comes into force when the job starts with no pod
    running, as after spec.suspend. `atoll run` ignores it."""
    ca_secret: str = Field(
        default="", max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"
    )
    """A Secret with an authority that others make and renew, such as cert-manager: tls.crt, which
    may sign certificates, and tls.key, of ECDSA. The operator signs with it. Left out, the operator
    makes an authority for the job and renews it. `atoll run` ignores it."""


class Syncer(Model):
    """The shards."""

    region: str = Field(default="", max_length=NAME_CHARACTERS_MAX)
    """Region where the shards and the evaluator run; left out, the first region."""
    shards: int = Field(default=1, ge=1, le=SHARDS_MAX)
    """Number of shards. Every fragment's tensors are spread over all shards, so that they share
    traffic, memory and work."""
    start_seconds: int = Field(default=START_SECONDS, ge=0, le=run_file.SECONDS_MAX)
    """Learners begin a run together: those that are ready wait for the others, at most so many
    seconds. 0: they do not wait."""
    storage: StorageSpec = StorageSpec()
    """Where the shards keep their log of committed merges."""
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


PLACE: Final = rf"^(file:///.+|{BUCKET})?$"  # a folder, or one of a bucket


class Evaluator(Model):
    """An observer that measures held-out loss on the shared parameters."""

    template: Template = Template()
    """Pod template of the evaluator; what is left out is filled in. Without a command, the
    evaluation of the built-in byte-level GPT runs."""
    every_steps: int = Field(default=100, ge=1, le=COUNT_MAX)
    """Steps between two evaluations."""


class FailureSpec(Model):
    """When lost nodes are given up."""

    node_loss_seconds: int = Field(default=20, ge=1, le=86400)
    """Seconds without a sign of life after which a node counts as lost and its pods are replaced
    elsewhere, if their sessions with the shards are dead too."""
    storm_percent: int = Field(default=50, ge=1, le=100)
    """When more than this percentage of a region's nodes (and at least 3) are lost at once, nothing
    is replaced (Degraded: NodeLossHeld): a failed network looks the same."""
    max_replacements_per_slot: int = Field(default=20, ge=0, le=10_000)
    """How often a learner may be moved away from a node within a day, which begins with the first
    time."""
    syncer_lost_seconds: int = Field(default=3600, ge=1, le=SECONDS_MAX)
    """Seconds after which the learners of a cluster that cannot reach the syncer in another one are
    scaled to 0. They come back by themselves when it answers again."""


class ExportSpec(Model):
    """Where the final model goes."""

    url: str = Field(default="", max_length=2048, pattern=PLACE)
    """file:///FOLDER, a folder that spec.syncer.template mounts in every shard, or a bucket as in
    syncer.storage.url. Left out, the model stays on the volume of the only shard, if that has one,
    or in the job's folder of the bucket. `atoll run` always writes to the run folder."""


class CheckpointSpec(Model):
    """Copies of the whole state of the training, with which a new job can begin."""

    url: str = Field(default="", max_length=2048, pattern=PLACE)
    """Where they go, each into a folder step-N: file:///FOLDER, a folder that spec.syncer.template
    mounts in every shard, or a bucket as in syncer.storage.url. Give each job a place of its own.
    `atoll run` writes to checkpoints/ in the run folder if it is left out."""
    every_steps: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """Steps between two checkpoints. Left out, only those are taken that `atoll checkpoint` asks
    for."""
    keep: int = Field(default=3, ge=1, le=1000)
    """How many whole checkpoints stay."""
    model: bool = True
    """Whether the folder of each gets the model as well, as model/ in the form of the export."""
    from_: str = Field(default="", max_length=2048, pattern=PLACE, alias="from")
    """A checkpoint with which the run begins: the URL of its folder step-N, of a place with several
    (the newest whole one is taken), or of the state of a job that is gone, as syncer.storage.url
    with its UID. Learners, regions, shards and spec.sync may differ from that job's, the names and
    shapes of the model's tensors may not. A run that has begun is not changed by it."""


class Sizing(Model):
    """What is expected of the training, for `atoll plan` and for warnings."""

    parameters: int = Field(ge=1, le=COUNT_MAX)
    """Parameters that travel."""
    step_milliseconds: int = Field(ge=1, le=COUNT_MAX)
    """Time of a step of the learner that sets the clock."""
