"""The models of `spec.learner` and `spec.regions`."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from atoll_operator.api.job.model_base import COUNT_MAX, LEARNERS_MAX, NAME_CHARACTERS_MAX, Model
from atoll_operator.api.job.pod_fields import PodOverrides, Template
from atoll_protos.names import REGION_PATTERN, slot_name

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
    """The line of a region to the syncer, as its owner expects it."""

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
    """The line of this region to the syncer; that of the syncer's region leads to all others. It
    changes nothing in the training: `atoll plan` reckons with it, and with spec.sizing Accepted and
    `atoll run` warn of a line that will not hold."""
    pod_overrides: PodOverrides = PodOverrides()
    """What the learners of this region have instead of the template's settings."""
    placement: RegionPlacement = Field(default=RegionPlacement.REGION, strict=False)
    """Where one cluster serves several regions: Region: the region's pods, also shards and
    evaluator, go only to nodes whose region label has its name. Anywhere: the operator does not ask
    for that label. `atoll run` ignores it."""

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot_name(self.name, ordinal) for ordinal in range(self.learners))
