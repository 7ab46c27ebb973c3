"""What a manifest says about pods: templates, and what a region changes in them.

A template is the cluster's to check: these models are open. Where lists are merged, the key by
which entries are told apart is required (`kube.plan.workloads.overrides` merges).
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from atoll_operator.api.job.model_base import IN_CAMEL_CASE, Model

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
    """Labels of the learners' pods, over those of the template; their StatefulSet has them too,
    where queues look for them."""
    annotations: dict[str, AnnotationValue] = Field(default={}, max_length=64)
    """Annotations of the learners' pods, over those of the template."""
    image: str = Field(default="", max_length=1024)
    """Image of the learner's container, instead of the template's."""
    command: list[str] = Field(default=[], max_length=128)
    """Command of the learner's container, instead of the template's."""
    args: list[str] = Field(default=[], max_length=128)
    """Arguments of the learner's command, instead of the template's."""
    env: list[EnvVar] = Field(default=[], max_length=128)
    """Environment variables; a name that the template has too gets this value."""
    env_from: list[dict[str, Any]] = Field(default=[], max_length=32)
    """ConfigMaps and Secrets whose entries become variables, after the template's."""
    resources: dict[str, Any] = Field(default={})
    """Resources of the learner's container, instead of the template's."""
    resource_claims: list[Named] = Field(default=[], max_length=32)
    """Claims of devices (dynamic resource allocation), merged by name."""
    volumes: list[Named] = Field(default=[], max_length=64)
    """Volumes; one whose name the template has too takes its place."""
    volume_mounts: list[Mount] = Field(default=[], max_length=64)
    """Mounts of the learner's container; one whose mountPath the template has too takes its
    place."""
    init_containers: list[Named] = Field(default=[], max_length=16)
    """Init containers; fields of one whose name the template has too replace the template's, its
    env and volumeMounts are merged as those of the learner's container."""
    service_account_name: str = Field(default="", max_length=253)
    """Service account of the learners' pods, instead of the template's."""
    image_pull_secrets: list[Named] = Field(default=[], max_length=16)
    """Secrets for the registry of this region, added to those of the template."""
    security_context: dict[str, Any] = Field(default={})
    """Security context of the learners' pods; its fields replace the template's."""
    container_security_context: dict[str, Any] = Field(default={})
    """Security context of the learner's container; its fields replace the template's."""
    node_selector: dict[str, str] = Field(default={}, max_length=32)
    """Labels that a node of this region must have, added to those of the template, and to the
    region's label where one cluster serves several regions."""
    affinity: dict[str, Any] = Field(default={})
    """Affinity; each of nodeAffinity, podAffinity and podAntiAffinity replaces that of the
    template."""
    tolerations: list[dict[str, Any]] = Field(default=[], max_length=32)
    """Tolerations, added to those of the template."""
    topology_spread_constraints: list[Spread] = Field(default=[], max_length=16)
    """Topology spread constraints; one whose topologyKey the template has too takes its place."""
    priority_class_name: str = Field(default="", max_length=253)
    """Priority class of the learners' pods, instead of the template's."""
    runtime_class_name: str = Field(default="", max_length=253)
    """Runtime class of the learners' pods, instead of the template's."""
    scheduler_name: str = Field(default="", max_length=253)
    """Scheduler of the learners' pods, instead of the template's."""
