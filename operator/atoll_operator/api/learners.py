"""The models of `spec.learner` and `spec.regions`."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from atoll_operator.api.model import COUNT_MAX, LEARNERS_MAX, NAME_CHARACTERS_MAX, Model
from atoll_operator.api.pods import PodOverrides, Template
from atoll_protos.names import REGION_PATTERN

HOSTS_NAME_CHARACTERS_MAX: Final = 46  # of both where every learner is a StatefulSet of its own
HOSTS_MAX: Final = 64


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
            " atoll-worker launch; a command that is a launcher itself stays as it is. It starts"
            " PET_NPROC_PER_NODE processes, else as many as its container's limit of"
            " nvidia.com/gpu, else one. The processes of all pods are one group of"
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
    tokens_per_step: int | None = Field(
        default=None,
        ge=1,
        le=COUNT_MAX,
        description=(
            "The most tokens that a learner of this region may report for a step. What is above"
            " counts as that, for the job's tokens and for the learner's weight in merges, and"
            " Degraded names it. Absent: no limit. It may change at any time, without a restart."
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
