"""What a manifest says about pods: templates, and what a region changes in them.

A template is the cluster's to check: Atoll reads few of its fields and passes all of them on, also
those of a Kubernetes that is newer than this version. So these models are open, and the CRD takes
any field inside of them. Where lists are merged, the key by which entries are told apart is
required (`kube.plan.overrides` merges).
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from atoll_operator.api.model import Model

AnnotationValue = Annotated[str, Field(max_length=16_384)]


class Open(BaseModel):
    """An object of Kubernetes: the fields that are read here, and any other."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True
    )


class EnvVar(Open):
    """One environment variable of a container; local mode uses plain values only."""

    name: str = Field(min_length=1, description="Name of the variable.")
    value: str = Field(default="", description="Its value; $(OTHER) is replaced as in any pod.")


class Named(Open):
    """An entry of a list in which names are unique: a volume, an init container, a claim."""

    name: str = Field(min_length=1, description="Name of the entry, unique in its list.")


class Mount(Open):
    """A volume mount; paths are unique in a container."""

    mount_path: str = Field(min_length=1, description="Path of the mount, unique in a container.")


class Spread(Open):
    """A topology spread constraint; keys are unique here."""

    topology_key: str = Field(min_length=1, description="Label of nodes over which pods spread.")


class Container(Open):
    """The fields of a container that local mode uses; a cluster uses all of them."""

    command: list[str] = Field(default=[])
    args: list[str] = Field(default=[])
    working_dir: str = ""
    env: list[EnvVar] = Field(default=[])


class PodSpec(Open):
    """A pod's containers."""

    containers: list[Container] = Field(default=[])


class Template(Open):
    """A pod template."""

    spec: PodSpec = PodSpec()

    @property
    def container(self) -> Container:
        """The first container: the one that trains."""
        return self.spec.containers[0] if self.spec.containers else Container()


class PodOverrides(Model):
    """What a region changes in the template; an empty value changes nothing."""

    labels: dict[str, str] = Field(
        default={},
        max_length=64,
        description=(
            "Labels of the learners' pods, over those of the template; their StatefulSet has them"
            " too, where queues look for them."
        ),
    )
    annotations: dict[str, AnnotationValue] = Field(
        default={},
        max_length=64,
        description="Annotations of the learners' pods, over those of the template.",
    )
    image: str = Field(
        default="",
        max_length=1024,
        description="Image of the learner's container, instead of the template's.",
    )
    command: list[str] = Field(
        default=[],
        max_length=128,
        description="Command of the learner's container, instead of the template's.",
    )
    args: list[str] = Field(
        default=[],
        max_length=128,
        description="Arguments of the learner's command, instead of the template's.",
    )
    env: list[EnvVar] = Field(
        default=[],
        max_length=128,
        description="Environment variables; a name that the template has too gets this value.",
    )
    env_from: list[dict[str, Any]] = Field(
        default=[],
        max_length=32,
        description="ConfigMaps and Secrets whose entries become variables, after the template's.",
    )
    resources: dict[str, Any] = Field(
        default={}, description="Resources of the learner's container, instead of the template's."
    )
    resource_claims: list[Named] = Field(
        default=[],
        max_length=32,
        description="Claims of devices (dynamic resource allocation), merged by name.",
    )
    volumes: list[Named] = Field(
        default=[],
        max_length=64,
        description="Volumes; one whose name the template has too takes its place.",
    )
    volume_mounts: list[Mount] = Field(
        default=[],
        max_length=64,
        description=(
            "Mounts of the learner's container; one whose mountPath the template has too takes its"
            " place."
        ),
    )
    init_containers: list[Named] = Field(
        default=[],
        max_length=16,
        description=(
            "Init containers; fields of one whose name the template has too replace the template's,"
            " its env and volumeMounts are merged as those of the learner's container."
        ),
    )
    service_account_name: str = Field(
        default="",
        max_length=253,
        description="Service account of the learners' pods, instead of the template's.",
    )
    image_pull_secrets: list[Named] = Field(
        default=[],
        max_length=16,
        description="Secrets for the registry of this region, added to those of the template.",
    )
    security_context: dict[str, Any] = Field(
        default={},
        description="Security context of the learners' pods; its fields replace the template's.",
    )
    container_security_context: dict[str, Any] = Field(
        default={},
        description=(
            "Security context of the learner's container; its fields replace the template's."
        ),
    )
    node_selector: dict[str, str] = Field(
        default={},
        max_length=32,
        description=(
            "Labels that a node of this region must have, added to those of the template, and to"
            " the region's label where one cluster serves several regions."
        ),
    )
    affinity: dict[str, Any] = Field(
        default={},
        description=(
            "Affinity; each of nodeAffinity, podAffinity and podAntiAffinity replaces that of the"
            " template."
        ),
    )
    tolerations: list[dict[str, Any]] = Field(
        default=[], max_length=32, description="Tolerations, added to those of the template."
    )
    topology_spread_constraints: list[Spread] = Field(
        default=[],
        max_length=16,
        description=(
            "Topology spread constraints; one whose topologyKey the template has too takes its"
            " place."
        ),
    )
    priority_class_name: str = Field(
        default="",
        max_length=253,
        description="Priority class of the learners' pods, instead of the template's.",
    )
    runtime_class_name: str = Field(
        default="",
        max_length=253,
        description="Runtime class of the learners' pods, instead of the template's.",
    )
    scheduler_name: str = Field(
        default="",
        max_length=253,
        description="Scheduler of the learners' pods, instead of the template's.",
    )
