"""Conditions over several fields of a manifest: each one for `atoll validate` and in CEL.

So the API server and `atoll validate` refuse the same manifests with the same message. What a
single field can show (type, range, pattern) stands in the models.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from atoll_operator.api.job import sync_fields
from atoll_operator.api.job.fields import (
    HOSTS_NAME_CHARACTERS_MAX,
    LEARNER_PODS_MAX,
    NAME_CHARACTERS_MAX,
    Reclaim,
    RegionSpec,
    StorageSpec,
    StorageType,
)
from atoll_operator.api.job.spec import Job, Spec
from atoll_operator.api.job.sync_fields import SyncSpec
from atoll_protos.errors import SpecError
from atoll_protos.job.run_file import Fragments
from atoll_protos.names import REGION_PATTERN


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`holds` and `cel` say the same; `cel` is a rule of `spec`, or of the whole object.

    A message with values of the manifest would cost CEL more than the API server allows.
    """

    field: str
    problem: str
    remedy: str
    holds: Callable[[Job], bool]
    cel: str
    of_object: bool = False


@dataclass(frozen=True, slots=True)
class Fixed:
    """What an update must not change; `path` is below `spec`.

    `cel` is for the API server, `holds(before, after)` says the same of what `atoll edit` changes.
    """

    path: str
    cel: str
    text: str
    holds: Callable[[Spec, Spec], bool]


def default_of(field: str) -> Any:
    return SyncSpec.model_fields[field].default


def effective(field: str) -> str:
    """CEL for a field of `spec.sync`: as given, else the preset's, else the default."""
    found = f"has(self.sync.{field}) ? self.sync.{field} :"
    for name, value in sync_fields.values(field).items():
        found += f" has(self.sync.preset) && self.sync.preset == '{name}' ? {value} :"
    return f"({found} {default_of(field)})"


def _unless_given(field: str) -> str:
    presets_of = "".join(
        f"; with {name} {value}" for name, value in sync_fields.values(field).items()
    )
    return f"({default_of(field)} unless given{presets_of})"


def _longest(job: Job) -> int:
    return len(job.name) + max(len(region.name) for region in job.spec.regions)


_CLAIM, _BUCKET = StorageType.PERSISTENT_VOLUME_CLAIM, StorageType.OBJECT_STORE


def _left_out(field: str, problem: str, remedy: str, *, in_buckets: bool) -> Rule:
    """Keep a field of the storage at its default while the state is in a bucket, or in none."""
    known = StorageSpec.model_fields[field]
    path = f"syncer.storage.{known.alias}"
    return Rule(
        field=f"spec.{path}",
        problem=problem,
        remedy=remedy,
        holds=lambda job: (
            (job.spec.syncer.storage.type is _BUCKET) is not in_buckets
            or getattr(job.spec.syncer.storage, field) == known.default
        ),
        cel=f"self.syncer.storage.type {'!=' if in_buckets else '=='} '{_BUCKET}'"
        f" || self.{path} == '{known.default}'",
    )


def _of_buckets() -> tuple[Rule, ...]:
    """List what belongs to ObjectStore alone, and what belongs to volumes alone."""
    alone, remove = (
        f"is for spec.syncer.storage.type {_BUCKET} alone",
        "remove it, or use that type",
    )
    volumes = f"is for volumes, and spec.syncer.storage.type is {_BUCKET}"
    return (
        Rule(
            field="spec.syncer.storage.url",
            problem=f"is missing: {_BUCKET} needs to know the bucket",
            remedy="give s3://BUCKET/PATH, gs://BUCKET/PATH or az://ACCOUNT/CONTAINER/PATH",
            holds=lambda job: (
                job.spec.syncer.storage.type is not _BUCKET or bool(job.spec.syncer.storage.url)
            ),
            cel=f"self.syncer.storage.type != '{_BUCKET}' || self.syncer.storage.url != ''",
        ),
        *(_left_out(x, alone, remove, in_buckets=False) for x in ("url", "endpoint", "secret")),
        *(
            _left_out(each, volumes, "remove it", in_buckets=True)
            for each in ("size", "storage_class_name")
        ),
        _left_out(
            "reclaim",
            f"is {Reclaim.DELETE}, and the operator has no rights to the bucket",
            "remove it; a lifecycle rule of the bucket can remove the folder of a job that is over",
            in_buckets=True,
        ),
    )


RESERVED = ("syncer", "evaluator")  # how the names of the job's other objects go on
_LEARNERS = (
    "self.regions.map(r, has(r.learners) ? r.learners :"
    f" {RegionSpec.model_fields['learners'].default}).sum()"
)

_BOTH = "this name and a region's name must have at most"
_SHORT = "self.spec.regions.all(r, size(self.metadata.name) + size(r.name) <= {})"
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
        holds=lambda job: job.spec.syncer.region in ("", *(r.name for r in job.spec.regions)),
        cel="self.syncer.region == '' || self.regions.exists(r, r.name == self.syncer.region)",
    ),
    Rule(
        field="spec.syncer.endpoints",
        problem="must have one entry for each shard",
        remedy="give one host:port for each shard, or none",
        holds=lambda job: len(job.spec.syncer.endpoints) in (0, job.spec.syncer.shards),
        cel="size(self.syncer.endpoints) == 0 || size(self.syncer.endpoints) == self.syncer.shards",
    ),
    Rule(
        field="spec.regions",
        problem=f"all learners together have more than {LEARNER_PODS_MAX} pods, one for each of"
        " spec.learner.hosts",
        remedy="use fewer learners, or fewer hosts for each",
        holds=lambda job: job.spec.learners * job.spec.learner.hosts <= LEARNER_PODS_MAX,
        cel=f"{_LEARNERS} * self.learner.hosts <= {LEARNER_PODS_MAX}",
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
        holds=lambda job: (  # what is not given fits every period: auto, or 1
            isinstance(job.spec.sync.fragments, Fragments)
            or job.spec.sync.fragments <= job.spec.sync.period
        ),
        cel="!has(self.sync.fragments) || type(self.sync.fragments) != int"
        " || self.sync.fragments <= self.sync.period",
    ),
    Rule(
        field="spec.sync.overlap",
        problem=f"must be less than spec.sync.period {_unless_given('overlap')}",
        remedy="use less than spec.sync.period",
        holds=lambda job: job.spec.sync.overlap < job.spec.sync.period,
        cel=f"{effective('overlap')} < self.sync.period",
    ),
    Rule(
        field="spec.sync.normLimit",
        problem="must be 0, or more than 1",
        remedy="use 0 to leave no change out, or about 10",
        holds=lambda job: job.spec.sync.norm_limit != 1,
        cel="self.sync.normLimit != 1",
    ),
    Rule(
        field="metadata.name",
        problem=f"{_BOTH} {NAME_CHARACTERS_MAX} characters together",
        remedy="use shorter names",
        holds=lambda job: _longest(job) <= NAME_CHARACTERS_MAX,
        cel=_SHORT.format(NAME_CHARACTERS_MAX),
        of_object=True,
    ),
    Rule(
        field="metadata.name",
        problem=f"{_BOTH} {HOSTS_NAME_CHARACTERS_MAX} characters together while"
        " spec.learner.hosts is more than 1",
        remedy="use shorter names",
        holds=lambda job: job.spec.learner.hosts == 1 or _longest(job) <= HOSTS_NAME_CHARACTERS_MAX,
        cel="self.spec.learner.hosts == 1 || " + _SHORT.format(HOSTS_NAME_CHARACTERS_MAX),
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
        holds=lambda job: not any(r.name.startswith(RESERVED) for r in job.spec.regions),
        cel="self.regions.all(r, !r.name.startsWith('{}') && !r.name.startsWith('{}'))".format(
            *RESERVED
        ),
    ),
    Rule(
        field="spec.syncer.endpoints",
        problem="an IPv6 address is not in brackets",
        remedy="write it as in [fd00::1]:7700",
        holds=lambda job: not any(map(re.compile(BARE_IPV6).match, job.spec.syncer.endpoints)),
        cel=f"!self.syncer.endpoints.exists(e, e.matches('{BARE_IPV6}'))",
    ),
    *_of_buckets(),
)

_CANNOT = "cannot change; start another job to change it"
_HOME = "({0}.syncer.region == '' ? {0}.regions[0].name : {0}.syncer.region)"
_VOLUMES = f"self.syncer.storage.type == '{_CLAIM}' && oldSelf.syncer.storage.type == '{_CLAIM}'"


def _is_same(name: str) -> Callable[[Spec, Spec], bool]:
    value = operator.attrgetter(name)
    return lambda before, after: value(before) == value(after)


def _same(path: str, name: str = "") -> Fixed:
    """`name` is that of the field in the models, where it differs."""
    return Fixed(path, f"self.{path} == oldSelf.{path}", _CANNOT, _is_same(name or path))


def _same_or_left_out(path: str, name: str) -> Fixed:
    """`name` is that of the field in the models."""
    given, same = f"has(self.{path})", f"self.{path} == oldSelf.{path}"
    cel = f"{given} == has(oldSelf.{path}) && (!{given} || {same})"
    return Fixed(path, cel, _CANNOT, _is_same(name))


def _same_volumes(before: Spec, after: Spec) -> bool:
    old, new = before.syncer.storage, after.syncer.storage
    volumes = old.type is new.type is _CLAIM
    return not volumes or old.storage_class_name == new.storage_class_name


def _same_bucket(before: Spec, after: Spec) -> bool:
    old, new = before.syncer.storage.url, after.syncer.storage.url
    return old == new or not old or not new


FIXED = (
    _same("seed"),
    _same("learner.hosts"),
    Fixed(
        "syncer.region",
        f"{_HOME.format('self')} == {_HOME.format('oldSelf')}",
        "cannot change, and is the first region unless given; keep that region the first one,"
        " name it here, or start another job",
        _is_same("syncer_region"),
    ),
    Fixed(
        "syncer.storage.storageClassName",
        f"!({_VOLUMES}) ||"
        " self.syncer.storage.storageClassName == oldSelf.syncer.storage.storageClassName",
        "cannot change, since Kubernetes changes it for no volume; to have other volumes, delete"
        " the job and its claims (kubectl delete pvc -l atoll.dev/job=NAME) and apply it again",
        _same_volumes,
    ),
    Fixed(
        "syncer.storage.url",
        "self.syncer.storage.url == oldSelf.syncer.storage.url || oldSelf.syncer.storage.url == ''"
        " || self.syncer.storage.url == ''",
        "cannot change, since the state of the run is there; start another job",
        _same_bucket,
    ),
    _same("syncer.shards"),
    _same("syncer.tls.caSecret", "syncer.tls.ca_secret"),
    _same("sync"),
    _same_or_left_out("managedBy", "managed_by"),
    Fixed(
        "steps",
        "has(self.steps) == has(oldSelf.steps)",
        "cannot take the place of spec.tokens, nor spec.tokens its; start another job",
        lambda before, after: (before.steps is None) == (after.steps is None),
    ),
)


def check(job: Job) -> None:
    """Raise SpecError for the first rule that the job breaks."""
    names = Counter(region.name for region in job.spec.regions)
    if twice := sorted(name for name in names if names[name] > 1):  # as the CRD's list map says
        problem = f"{', '.join(twice)} is there twice"
        raise SpecError("spec.regions", problem, "give each region a name of its own")
    for rule in RULES:
        if not rule.holds(job):
            raise SpecError(rule.field, rule.problem, rule.remedy)


def check_edit(before: Job, after: Job) -> None:
    """Raise SpecError for the first field that no edit may change, in the API server's words."""
    for fixed in FIXED:
        if not fixed.holds(before.spec, after.spec):
            problem, _, remedy = fixed.text.partition("; ")
            raise SpecError(f"spec.{fixed.path}", problem, remedy)
