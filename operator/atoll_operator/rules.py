"""What no single field shows wrong: each rule for `atoll validate` and in CEL, one wording."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll_protos.errors import SpecError

if TYPE_CHECKING:
    from atoll_operator.spec import Job

NAME_CHARACTERS_MAX = 50  # of a job and a region together

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
    """`problem` says what is wrong with a job, if anything; `cel` and `problem_cel` say the same.

    `cel` stands at `spec`, or at the whole object when `of_object`.
    """

    field: str
    remedy: str
    problem: Callable[["Job"], str | None]
    cel: str
    problem_cel: str
    of_object: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What an update must not change; only the API server sees both."""

    field: str
    cel: str
    text: str


def _regions_twice(job: "Job") -> str | None:
    names = [region.name for region in job.spec.regions]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"{', '.join(twice)} named twice" if twice else None


def _length(job: "Job") -> str | None:
    once = (job.spec.steps is None) != (job.spec.tokens is None)
    return None if once else "the length is not given once"


def _syncer_region(job: "Job") -> str | None:
    region = job.spec.syncer.region
    known = region in ("", *(each.name for each in job.spec.regions))
    return None if known else f"'{region}' is no region of this job"


def _endpoints(job: "Job") -> str | None:
    given, shards = len(job.spec.syncer.endpoints), job.spec.syncer.shards
    return None if given in (0, shards) else f"{given} endpoints for {shards} shards"


def _quorum(job: "Job") -> str | None:
    quorum, learners = job.spec.sync.quorum, job.spec.learners
    return f"{quorum} of {learners} learners" if quorum > max(1, learners) else None


def _fragments(job: "Job") -> str | None:
    sync = job.spec.sync
    wrong = sync.fragments > sync.period
    return f"{sync.fragments} in a period of {sync.period} ticks" if wrong else None


def _overlap(job: "Job") -> str | None:
    sync = job.spec.sync
    wrong = sync.overlap >= sync.period
    return f"{sync.overlap} in a period of {sync.period} ticks" if wrong else None


def _names(job: "Job") -> str | None:
    longest = max(len(region.name) for region in job.spec.regions)
    if len(job.name) + longest <= NAME_CHARACTERS_MAX:
        return None
    return f"with a region's name it has more than {NAME_CHARACTERS_MAX} characters"


RULES = (
    Rule(
        field="spec.steps",
        remedy="give exactly one of steps and tokens",
        problem=_length,
        cel="has(self.steps) != has(self.tokens)",
        problem_cel="'the length is not given once'",
    ),
    Rule(
        field="spec.syncer.region",
        remedy="use one of spec.regions",
        problem=_syncer_region,
        cel="self.syncer.region == '' || self.regions.exists(r, r.name == self.syncer.region)",
        problem_cel="'\\'' + self.syncer.region + '\\' is no region of this job'",
    ),
    Rule(
        field="spec.syncer.endpoints",
        remedy="give one host:port for each shard, or none",
        problem=_endpoints,
        cel="size(self.syncer.endpoints) == 0 || size(self.syncer.endpoints) == self.syncer.shards",
        problem_cel=(
            "string(size(self.syncer.endpoints)) + ' endpoints for '"
            " + string(self.syncer.shards) + ' shards'"
        ),
    ),
    Rule(
        field="spec.sync.quorum",
        remedy="use at most the number of learners",
        problem=_quorum,
        cel=f"!has(self.sync.quorum) || self.sync.quorum <= 1 || self.sync.quorum <= {_LEARNERS}",
        problem_cel=f"string(self.sync.quorum) + ' of ' + string({_LEARNERS}) + ' learners'",
    ),
    Rule(
        field="spec.sync.fragments",
        remedy="use at most spec.sync.period",
        problem=_fragments,
        cel=f"{_FRAGMENTS} <= self.sync.period",
        problem_cel=(
            f"string({_FRAGMENTS}) + ' in a period of ' + string(self.sync.period) + ' ticks'"
        ),
    ),
    Rule(
        field="spec.sync.overlap",
        remedy="use less than spec.sync.period",
        problem=_overlap,
        cel=f"{_OVERLAP} < self.sync.period",
        problem_cel=(
            f"string({_OVERLAP}) + ' in a period of ' + string(self.sync.period) + ' ticks'"
        ),
    ),
    Rule(
        field="metadata.name",
        remedy="use shorter names",
        problem=_names,
        cel=(
            "self.spec.regions.all(r,"
            f" size(self.metadata.name) + size(r.name) <= {NAME_CHARACTERS_MAX})"
        ),
        problem_cel=f"'with a region\\'s name it has more than {NAME_CHARACTERS_MAX} characters'",
        of_object=True,
    ),
    Rule(
        field="metadata.name",
        remedy="use a-z, 0-9 and inner dashes",
        problem=lambda job: None,  # spec.from_object has looked
        cel="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        problem_cel="'\\'' + self.metadata.name + '\\' is no name'",
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
    twice = _regions_twice(job)  # the API server's list map says this in its own words
    if twice is not None:
        raise SpecError("spec.regions", twice, "name each region once")
    for rule in RULES:
        problem = rule.problem(job)
        if problem is not None:
            raise SpecError(rule.field, problem, rule.remedy)
