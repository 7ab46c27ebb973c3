"""What no single field shows wrong: each rule for `atoll validate` and in CEL, one wording."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.api.spec import Job

NAME_CHARACTERS_MAX = 50  # of a job and a region together
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

_FRAGMENTS = (
    "(has(self.sync.fragments) ? self.sync.fragments :"
    " has(self.sync.preset) && self.sync.preset == 'DiLoCo' ? 1 : 24)"
)
_OVERLAP = (
    "(has(self.sync.overlap) ? self.sync.overlap :"
    " has(self.sync.preset) && self.sync.preset == 'DiLoCo' ? 0 : 2)"
)
_LEARNERS = "self.regions.map(r, r.learners).sum()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`holds` and `cel` say the same; `cel` stands at `spec`, or at the whole object.

    The words are fixed: numbers in a message would cost CEL more than it may spend.
    """

    field: str
    problem: str
    remedy: str
    holds: Callable[["Job"], bool]
    cel: str
    of_object: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What an update must not change; only the API server sees both."""

    field: str
    cel: str
    text: str


def _endpoints(job: "Job") -> bool:
    return len(job.spec.syncer.endpoints) in (0, job.spec.syncer.shards)


def _syncer_region(job: "Job") -> bool:
    return job.spec.syncer.region in ("", *(each.name for each in job.spec.regions))


def _names(job: "Job") -> bool:
    longest = max(len(region.name) for region in job.spec.regions)
    return len(job.name) + longest <= NAME_CHARACTERS_MAX


RULES = (
    Rule(
        field="spec.steps",
        problem="the length is not given once",
        remedy="give exactly one of steps and tokens",
        holds=lambda job: (job.spec.steps is None) != (job.spec.tokens is None),
        cel="has(self.steps) != has(self.tokens)",
    ),
    Rule(
        field="spec.syncer.region",
        problem="is no region of this job",
        remedy="use one of spec.regions",
        holds=_syncer_region,
        cel="self.syncer.region == '' || self.regions.exists(r, r.name == self.syncer.region)",
    ),
    Rule(
        field="spec.syncer.endpoints",
        problem="are not as many as the shards",
        remedy="give one host:port for each shard, or none",
        holds=_endpoints,
        cel="size(self.syncer.endpoints) == 0 || size(self.syncer.endpoints) == self.syncer.shards",
    ),
    Rule(
        field="spec.sync.quorum",
        problem="is more than all learners together",
        remedy="use at most the number of learners",
        holds=lambda job: job.spec.sync.quorum <= max(1, job.spec.learners),
        cel=f"!has(self.sync.quorum) || self.sync.quorum <= 1 || self.sync.quorum <= {_LEARNERS}",
    ),
    Rule(
        field="spec.sync.fragments",
        problem="is more than the ticks of a period (24 where not given; with DiLoCo 1)",
        remedy="use at most spec.sync.period",
        holds=lambda job: job.spec.sync.fragments <= job.spec.sync.period,
        cel=f"{_FRAGMENTS} <= self.sync.period",
    ),
    Rule(
        field="spec.sync.overlap",
        problem="is a whole period or more (2 where not given; with DiLoCo 0)",
        remedy="use less than spec.sync.period",
        holds=lambda job: job.spec.sync.overlap < job.spec.sync.period,
        cel=f"{_OVERLAP} < self.sync.period",
    ),
    Rule(
        field="metadata.name",
        problem=f"has with a region's name more than {NAME_CHARACTERS_MAX} characters",
        remedy="use shorter names",
        holds=_names,
        cel=(
            "self.spec.regions.all(r,"
            f" size(self.metadata.name) + size(r.name) <= {NAME_CHARACTERS_MAX})"
        ),
        of_object=True,
    ),
    Rule(
        field="metadata.name",
        problem="is no name for Services",
        remedy="use a-z, 0-9 and inner dashes",
        holds=lambda job: NAME.fullmatch(job.name) is not None,
        cel=f"self.metadata.name.matches('^{NAME.pattern}$')",
        of_object=True,
    ),
)

_NEW_JOB = "start another job to change it"


def _same(path: str) -> Fixed:
    return Fixed(
        field=f"spec.{path}",
        cel=f"self.{path} == oldSelf.{path}",
        text=f"cannot change; {_NEW_JOB}",
    )


def _grows(name: str) -> Fixed:
    return Fixed(
        field=f"spec.{name}",
        cel=f"!has(oldSelf.{name}) || (has(self.{name}) && self.{name} >= oldSelf.{name})",
        text="may only grow; give at least what it was",
    )


FIXED = (
    _same("seed"),
    _same("learner.hosts"),
    _same("syncer.region"),
    _same("syncer.shards"),
    _same("sync"),
    Fixed(
        field="spec.managedBy",
        cel=(
            "has(self.managedBy) == has(oldSelf.managedBy)"
            " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)"
        ),
        text=f"cannot change; {_NEW_JOB}",
    ),
    _grows("steps"),
    _grows("tokens"),
)


def check(job: "Job") -> None:
    """Raises SpecError for the first rule that the job breaks."""
    names = [region.name for region in job.spec.regions]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:  # the API server's list map says this in its own words
        raise SpecError("spec.regions", f"{', '.join(twice)} named twice", "name each region once")
    for rule in RULES:
        if not rule.holds(job):
            raise SpecError(rule.field, rule.problem, rule.remedy)
