"""Conditions over several fields of a manifest: each one for `atoll validate` and in CEL.

A rule is one value that holds the Python function, the CEL text and the words, so the API server
and `atoll validate` refuse the same manifests with the same message. What a single field can show
(type, range, pattern) stands in the models. `FIXED` lists what an update must not change.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from atoll_operator.api import presets
from atoll_operator.api.learners import HOSTS_NAME_CHARACTERS_MAX, RegionSpec
from atoll_operator.api.model import NAME_CHARACTERS_MAX
from atoll_operator.api.spec import Job
from atoll_operator.api.sync import SyncSpec
from atoll_operator.api.syncer import StorageType, TlsMode
from atoll_protos.errors import SpecError
from atoll_protos.names import REGION_PATTERN
from atoll_protos.run import Fragments


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`holds` and `cel` say the same; `cel` is a rule of `spec`, or of the whole object.

    The message contains no value of the manifest: building it would cost CEL more than the API
    server allows.
    """

    field: str
    problem: str
    remedy: str
    holds: Callable[[Job], bool]
    cel: str
    of_object: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What an update must not change; only the API server sees both versions.

    `path` is below `spec`; `may` says in the reference whether the value itself may change.
    """

    path: str
    cel: str
    text: str
    may: str = "no"

    @property
    def field(self) -> str:
        """The path that a message names."""
        return f"spec.{self.path}"


def default_of(field: str) -> Any:
    """The default of a field of `spec.sync` where neither manifest nor preset gives one."""
    return SyncSpec.model_fields[field].default


def effective(field: str) -> str:
    """CEL for the value of a field of `spec.sync`: as given, else the preset's, else the default.

    The API server does not fill these fields, since their default depends on the preset.
    """
    found = f"has(self.sync.{field}) ? self.sync.{field} :"
    for name, value in presets.values(field).items():
        found += f" has(self.sync.preset) && self.sync.preset == '{name}' ? {value} :"
    return f"({found} {default_of(field)})"


def _unless_given(field: str) -> str:
    """`(24 unless given; with DiLoCo 1)`: the value that a user does not see in the manifest."""
    presets_of = "".join(f"; with {name} {value}" for name, value in presets.values(field).items())
    return f"({default_of(field)} unless given{presets_of})"


def _endpoints(job: Job) -> bool:
    return len(job.spec.syncer.endpoints) in (0, job.spec.syncer.shards)


def _syncer_region(job: Job) -> bool:
    return job.spec.syncer.region in ("", *(each.name for each in job.spec.regions))


def _names(job: Job) -> bool:
    return _longest(job) <= NAME_CHARACTERS_MAX


def _names_of_hosts(job: Job) -> bool:
    return job.spec.learner.hosts == 1 or _longest(job) <= HOSTS_NAME_CHARACTERS_MAX


def _longest(job: Job) -> int:
    return len(job.name) + max(len(region.name) for region in job.spec.regions)


def _fragments(job: Job) -> bool:
    """What is not given fits every period: auto, or 1."""
    sync = job.spec.sync
    return isinstance(sync.fragments, Fragments) or sync.fragments <= sync.period


RESERVED = ("syncer", "evaluator")  # how the names of the job's other objects go on


def _regions(job: Job) -> bool:
    return not any(region.name.startswith(RESERVED) for region in job.spec.regions)


_LEARNERS = (
    "self.regions.map(r, has(r.learners) ? r.learners :"
    f" {RegionSpec.model_fields['learners'].default}).sum()"
)

BARE_IPV6 = "^[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:"  # its last part could be the port, or its own

RULES = (
    Rule(
        field="spec.steps",
        problem="steps and tokens are both given, or neither is",
        remedy="give exactly one of steps and tokens",
        holds=lambda job: (job.spec.steps is None) != (job.spec.tokens is None),
        cel="has(self.steps) != has(self.tokens)",
    ),
    Rule(
        field="spec.syncer.region",
        problem="must be a region of this job",
        remedy="use one of spec.regions",
        holds=_syncer_region,
        cel="self.syncer.region == '' || self.regions.exists(r, r.name == self.syncer.region)",
    ),
    Rule(
        field="spec.syncer.endpoints",
        problem="must have one entry for each shard",
        remedy="give one host:port for each shard, or none",
        holds=_endpoints,
        cel="size(self.syncer.endpoints) == 0 || size(self.syncer.endpoints) == self.syncer.shards",
    ),
    Rule(
        field="spec.syncer.tls.issuerRef",
        problem="signs certificates that nobody uses while spec.syncer.tls.mode is Disabled",
        remedy=f"remove it, or use spec.syncer.tls.mode {TlsMode.REQUIRED}",
        holds=lambda job: (
            job.spec.syncer.tls.issuer_ref is None or job.spec.syncer.tls.mode is TlsMode.REQUIRED
        ),
        cel=f"!has(self.syncer.tls.issuerRef) || self.syncer.tls.mode == '{TlsMode.REQUIRED}'",
    ),
    Rule(
        field="spec.sync.quorum",
        problem="must not be more than all learners together",
        remedy="use at most the number of learners",
        holds=lambda job: (job.spec.sync.quorum or 1) <= max(1, job.spec.learners),
        cel=f"!has(self.sync.quorum) || self.sync.quorum <= 1 || self.sync.quorum <= {_LEARNERS}",
    ),
    Rule(
        field="spec.sync.fragments",
        problem="must not be more than spec.sync.period",
        remedy="use auto, or at most spec.sync.period",
        holds=_fragments,
        cel=(
            "!has(self.sync.fragments) || type(self.sync.fragments) != int"
            " || self.sync.fragments <= self.sync.period"
        ),
    ),
    Rule(
        field="spec.sync.overlap",
        problem=f"must be less than spec.sync.period {_unless_given('overlap')}",
        remedy="use less than spec.sync.period",
        holds=lambda job: job.spec.sync.overlap < job.spec.sync.period,
        cel=f"{effective('overlap')} < self.sync.period",
    ),
    Rule(
        field="metadata.name",
        problem=(
            f"this name and a region's name must have at most {NAME_CHARACTERS_MAX} characters"
            " together"
        ),
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
        problem=(
            "this name and a region's name must have at most"
            f" {HOSTS_NAME_CHARACTERS_MAX} characters together while spec.learner.hosts is more"
            " than 1"
        ),
        remedy="use shorter names",
        holds=_names_of_hosts,
        cel=(
            "self.spec.learner.hosts == 1 || self.spec.regions.all(r,"
            f" size(self.metadata.name) + size(r.name) <= {HOSTS_NAME_CHARACTERS_MAX})"
        ),
        of_object=True,
    ),
    Rule(
        field="spec.learner.hostsMin",
        problem="must not be more than spec.learner.hosts",
        remedy="use at most spec.learner.hosts, or leave it out",
        holds=lambda job: (job.spec.learner.hosts_min or 1) <= job.spec.learner.hosts,
        cel="!has(self.learner.hostsMin) || self.learner.hostsMin <= self.learner.hosts",
    ),
    Rule(
        field="spec.learner.topologyKey",
        problem="brings the hosts of a learner together, and spec.learner.hosts is 1",
        remedy="remove it, or give spec.learner.hosts",
        holds=lambda job: not job.spec.learner.topology_key or job.spec.learner.hosts > 1,
        cel="self.learner.topologyKey == '' || self.learner.hosts > 1",
    ),
    Rule(
        field="metadata.name",
        problem="must be a name that Services can have",
        remedy="use a-z, 0-9 and inner dashes",
        holds=lambda job: REGION_PATTERN.fullmatch(job.name) is not None,
        cel=f"self.metadata.name.matches('^{REGION_PATTERN.pattern}$')",
        of_object=True,
    ),
    Rule(
        field="spec.regions",
        problem="a name begins with syncer or evaluator, as those of the job's other objects do",
        remedy="give the region another name",
        holds=_regions,
        cel="self.regions.all(r, "
        + " && ".join(f"!r.name.startsWith('{word}')" for word in RESERVED)
        + ")",
    ),
    Rule(
        field="spec.restore",
        problem="needs volumes that outlive a job",
        remedy=f"use spec.syncer.storage.type {StorageType.PERSISTENT_VOLUME_CLAIM}",
        holds=lambda job: (
            job.spec.restore is None
            or job.spec.syncer.storage.type is StorageType.PERSISTENT_VOLUME_CLAIM
        ),
        cel=(
            "!has(self.restore) ||"
            f" self.syncer.storage.type == '{StorageType.PERSISTENT_VOLUME_CLAIM}'"
        ),
    ),
    Rule(
        field="spec.syncer.endpoints",
        problem="an IPv6 address is not in brackets",
        remedy="write it as in [fd00::1]:7700",
        holds=lambda job: not any(map(re.compile(BARE_IPV6).match, job.spec.syncer.endpoints)),
        cel=f"!self.syncer.endpoints.exists(e, e.matches('{BARE_IPV6}'))",
    ),
)

_CANNOT = "cannot change; start another job to change it"


def _same(path: str) -> Fixed:
    return Fixed(path=path, cel=f"self.{path} == oldSelf.{path}", text=_CANNOT)


_HOME = "({0}.syncer.region == '' ? {0}.regions[0].name : {0}.syncer.region)"
_VOLUMES = " && ".join(
    f"{version}.syncer.storage.type == '{StorageType.PERSISTENT_VOLUME_CLAIM}'"
    for version in ("self", "oldSelf")
)
_ANEW = (
    "to have other volumes, delete the job and its claims (kubectl delete pvc -l"
    " atoll.dev/job=NAME) and apply it again"
)

FIXED = (
    _same("seed"),
    _same("learner.hosts"),
    Fixed(
        path="syncer.region",
        cel=f"{_HOME.format('self')} == {_HOME.format('oldSelf')}",
        text=(
            "cannot change, and is the first region unless given; keep that region the first one,"
            " name it here, or start another job"
        ),
    ),
    Fixed(
        path="syncer.storage.storageClassName",
        cel=(
            f"!({_VOLUMES}) ||"
            " self.syncer.storage.storageClassName == oldSelf.syncer.storage.storageClassName"
        ),
        text=f"cannot change, since Kubernetes changes it for no volume; {_ANEW}",
    ),
    _same("syncer.shards"),
    Fixed(
        path="syncer.tls.issuerRef",
        cel=(
            "has(self.syncer.tls.issuerRef) == has(oldSelf.syncer.tls.issuerRef) &&"
            " (!has(self.syncer.tls.issuerRef) ||"
            " self.syncer.tls.issuerRef == oldSelf.syncer.tls.issuerRef)"
        ),
        text=_CANNOT,
    ),
    _same("sync"),
    *(
        Fixed(
            path=name,
            cel=(
                f"has(self.{name}) == has(oldSelf.{name})"
                f" && (!has(self.{name}) || self.{name} == oldSelf.{name})"
            ),
            text=_CANNOT,
        )
        for name in ("managedBy", "restore")
    ),
    Fixed(
        path="steps",
        cel="has(self.steps) == has(oldSelf.steps)",
        text="cannot take the place of spec.tokens, nor spec.tokens its; start another job",
        may="yes",
    ),
)


def check(job: Job) -> None:
    """Raise SpecError for the first rule that the job breaks."""
    names = [region.name for region in job.spec.regions]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:  # the API server's list map says this in its own words
        problem = f"{', '.join(twice)} is there twice"
        raise SpecError("spec.regions", problem, "give each region a name of its own")
    for rule in RULES:
        if not rule.holds(job):
            raise SpecError(rule.field, rule.problem, rule.remedy)
