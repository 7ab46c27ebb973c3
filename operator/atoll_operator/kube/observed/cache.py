"""The API server's objects as its watches show them: what every pass judges, without asking.

Children and pods are found by the key of the job that their label names, so a pass costs what its
own job has.

Read your own writes. A pass must never judge an object as it was before a write of this operator:
it would write the same again, or delete a second pod for the first one's reason. So the answer to
each write is put into the cache (`written`), and what was deleted is taken out (`deleted`), before
the write's caller goes on. What watches show later may be older; two rules keep that out:

- A state is taken only if its resourceVersion, as a number, is above that of the one that is known.
- A UID that was deleted stays deleted, until the watch, or a list, shows that it is gone.

A job is judged only while the watches of all kinds work that show its namespace (`Sight`,
`Cache.problem`).

How many children each job has and asks for, and which jobs may not have more: limits.

A child is a pod that a job asks for here; a StatefulSet or a Deployment that has none, as those of
a job that is over, counts as one. So that the size of templates is limited, too, a workload counts
one more for each TEMPLATE_BYTES of its template.

What a job *has* is what its manifest accepted last asks for, and it keeps that: a limit that is
lowered ends nothing. What it asks for beyond that is given to jobs in the order of their creation,
as long as there is room beside all that other jobs have. A job that was created suspended asks for
nothing. So all replicas, also those that have just started, decide alike, and a newer job takes
nothing from an older one.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.names import ACCEPTED_SPEC, accepted_name
from atoll_operator.kube.settings import NO_LIMITS, Limits
from atoll_protos.errors import SpecError
from atoll_protos.names import Label

TEMPLATE_BYTES = 4096
OVER = frozenset({"Complete", "Failed"})
FIELD = "spec.regions"

Key = tuple[str, str]  # namespace and name of a job
Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one job has and asks for."""

    since: tuple[str, str]  # when it was created, and its UID
    has: int
    asks: int

    @property
    def more(self) -> int:
        return max(0, self.asks - self.has)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The accounts of all jobs; the cache says which are to be read again."""

    limits: Limits = NO_LIMITS
    serves: Callable[[str], bool] = lambda _: True
    accounts: dict[Key, Account] = field(default_factory=dict)
    refused: dict[Key, SpecError] | None = None  # None: not known since the last change
    told: set[Key] = field(default_factory=set)  # jobs that know of their refusal

    def refusal(self, key: Key) -> SpecError | None:
        """Why a job may not have what it asks for; it will be in `freed` when it may."""
        found = None
        if (account := self.accounts.get(key)) is not None and account.more:
            found = self._judged().get(key)
        (self.told.discard if found is None else self.told.add)(key)
        return found

    def freed(self) -> set[Key]:
        """Jobs that were refused and may now have what they ask for, or are gone; once each."""
        found = self.told - self._judged().keys() if self.told else set()
        self.told -= found
        return found

    def note(self, key: Key, job: Raw | None, accepted: Raw | None) -> None:
        """Take in a job and its manifest accepted last, as they are now (None: not there)."""
        self.refused = None
        if job is None:
            self.accounts.pop(key, None)
        else:
            self.accounts[key] = self._account(job, accepted)

    def _account(self, job: Raw, accepted: Raw | None) -> Account:
        metadata, spec = job["metadata"], _mapping(job.get("spec"))
        over = _is_over(_mapping(job.get("status")))
        has, asks = 0, count(spec, self.serves, over=over)
        if _is_of(accepted, metadata["uid"]):
            has = count(_accepted_spec(accepted), self.serves, over=over)
        elif spec.get("suspend") is True:
            asks = 0
        since = (str(metadata.get("creationTimestamp")), str(metadata["uid"]))
        return Account(since=since, has=has, asks=asks)

    def _judged(self) -> dict[Key, SpecError]:
        """Find the jobs that ask for more than there is room for, with the reason."""
        if self.refused is not None:
            return self.refused
        self.refused, taken = {}, Counter[str]()
        for (namespace, _), account in self.accounts.items():
            taken[namespace] += account.has
        total = taken.total()
        growing = [(account.since, key) for key, account in self.accounts.items() if account.more]
        for _, key in sorted(growing):
            account, namespace = self.accounts[key], key[0]
            rooms = (
                ("childrenPerJob", "a job", self.limits.of_job, 0),
                ("childrenPerNamespace", "a namespace", self.limits.of_namespace, taken[namespace]),
                ("children", "this install", self.limits.in_all, total),
            )
            for value, scope, limit, used in rooms:
                room = limit - used + (account.has if used else 0)
                if account.asks > room:
                    self.refused[key] = _refusal(account.asks, value, scope, limit, max(0, room))
                    break
            else:
                taken[namespace] += account.more
                total += account.more
        return self.refused


def _refusal(asks: int, value: str, scope: str, limit: float, room: float) -> SpecError:
    alone = scope == "a job"
    left = "" if alone else f", of which {room:.0f} are left for it"
    wait = "" if alone else "delete jobs that are over, "
    return SpecError(
        FIELD,
        f"asks for {asks} children (pods, and templates in pieces of 4 KiB), and {scope} may have"
        f" {limit:.0f}{left}",
        f"use fewer learners or hosts, {wait}or have the chart's value limits.{value} raised",
    )


def count(spec: Raw, serves: Callable[[str], bool], *, over: bool = False) -> int:
    """Count the children that a manifest asks for here; `spec`, as stored, may be anything."""
    learner, syncer = _mapping(spec.get("learner")), _mapping(spec.get("syncer"))
    hosts, template = _number(learner.get("hosts")), _pieces(learner.get("template"))
    regions = [_mapping(region) for region in _list(spec.get("regions"))]
    found = 0
    for region in regions:
        if not serves(str(region.get("name"))):
            continue
        learners = _number(region.get("learners"))
        sets = learners if hosts > 1 else 1
        pods = 0 if over else learners * hosts
        found += max(sets, pods) + sets * (template + _pieces(region.get("podOverrides")))
    home = syncer.get("region") or (regions[0].get("name") if regions else "")
    if serves(str(home)):
        found += _number(syncer.get("shards")) * (1 + _pieces(syncer.get("template")))
        if evaluator := _mapping(spec.get("evaluator")):
            found += 1 + _pieces(evaluator.get("template"))
    return found


def _is_over(status: Raw) -> bool:
    said = [_mapping(condition) for condition in _list(status.get("conditions"))]
    return any(one.get("type") in OVER and one.get("status") == "True" for one in said)


def _is_of(accepted: Raw | None, uid: str) -> bool:
    labels = _mapping(accepted and accepted["metadata"].get("labels"))
    return labels.get(Label.JOB_UID) == uid


def _accepted_spec(accepted: Raw | None) -> Raw:
    try:
        return _mapping(json.loads(_mapping(accepted and accepted.get("data"))[ACCEPTED_SPEC]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}  # somebody has changed it: the next pass writes it again


def _mapping(value: Any) -> Raw:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 1


def _pieces(template: Any) -> int:
    return len(json.dumps(template)) // TEMPLATE_BYTES if template else 0


Object = dict[str, Any]
Id = tuple[str, str, str]  # kind, namespace, name

UNREAD_OF_CONTAINERS = frozenset(
    {
        "args", "command", "env", "envFrom", "lifecycle", "livenessProbe", "readinessProbe",
        "startupProbe", "volumeMounts", "volumeDevices",
    }
)  # fmt: skip
KEPT_METADATA = (
    "name",
    "uid",
    "resourceVersion",
    "labels",
    "creationTimestamp",
)  # of Nodes, Leases
FAILURES = {  # the Events that are read: their reasons, by the kind of what they are about
    "StatefulSet": ("FailedCreate",),
    "Pod": ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"),
}
SUMMARY = "Unable to attach or mount volumes"  # says each 2 minutes that it failed, but not why
SANDBOX = re.compile(r"\b[0-9a-f]{64}\b")  # each try has another one
MESSAGE_CHARACTERS_MAX = 500
KEPT_SPEC = ("taints", "unschedulable", "renewTime", "leaseDurationSeconds")


@dataclass(slots=True, kw_only=True)
class Sight:
    """How well one collection can be seen; times are monotonic seconds. Its watch writes this."""

    namespace: str = ""  # whose objects the collection has; empty: of all
    tried_at: float  # when the watch last did anything: began, failed, or saw a sign of life
    listed: bool = False  # read once as a whole
    alive_at: float | None = None  # last list, event or bookmark
    problem: str = ""  # why it does not work now; empty: it works, or has only begun
    broken_at: float | None = None  # since when it does not work
    gone: bool = False  # its namespace does not exist any more: it has nothing

    def works(self, now: float) -> None:
        self.tried_at = self.alive_at = now
        self.problem, self.broken_at, self.gone = "", None, False

    def fails(self, problem: str, now: float) -> None:
        self.tried_at, self.problem = now, problem
        if self.broken_at is None:
            self.broken_at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFailure:
    """Why no pod is made or started, as an Event tells, which may outlive its reason by an hour."""

    uid: str  # of the StatefulSet or of the pod
    namespace: str
    event: str  # name
    message: str
    at: str  # RFC 3339: when it happened last

    @property
    def telling(self) -> tuple[bool, str]:
        """Which of two is kept: the one that says why, the later one."""
        return not self.message.startswith(SUMMARY), self.at


@dataclass(slots=True, kw_only=True)
class Cache:
    """Jobs, their children and their pods."""

    objects: dict[Id, Object] = field(default_factory=dict)
    by_job: dict[Key, dict[Id, Object]] = field(default_factory=dict)  # children, by label
    by_uid: dict[str, Id] = field(default_factory=dict)
    deleted_uids: dict[str, Id] = field(default_factory=dict)  # the watch has not shown it yet
    sights: dict[str, Sight] = field(default_factory=dict)  # of each collection, by its path
    failures: dict[str, EventFailure] = field(default_factory=dict)  # by UID of its object
    ledger: Ledger = field(default_factory=Ledger)
    uncounted: set[Key] = field(default_factory=set)  # jobs that the ledger is to read again
    failures_sights: dict[str, Sight] = field(default_factory=dict)  # passes go on without these

    # ------------------------------------------------------------ reading

    def job(self, key: Key) -> Object | None:
        """Not to be changed."""
        return self.objects.get((KIND, *key))

    def jobs(self, namespace: str) -> list[Object]:
        """Not to be changed."""
        return [raw for _, raw in self._of(KIND, namespace)]

    def children(self, key: Key) -> list[Object]:
        """All objects that carry the job's label, in the order of their kinds and names."""
        found = self.by_job.get(key, {})
        return [found[child] for child in sorted(found)]

    def jobs_on(self, nodes: Collection[str]) -> set[Key]:
        return {
            key
            for key, found in self.by_job.items()
            for each in found.values()
            if nodes and each["kind"] == "Pod" and each.get("spec", {}).get("nodeName") in nodes
        }

    def problem(self, namespace: str) -> str:
        """Why a namespace may not be judged: a collection that has its objects is not seen."""
        seen = {x: sight for x, sight in self.sights.items() if sight.namespace in ("", namespace)}
        if seen and all(sight.gone for sight in seen.values()):
            return ""
        for path, sight in seen.items():
            if sight.problem:
                return f"{path} cannot be watched: {sight.problem}"
            if not sight.listed:
                return f"{path} is not listed yet"
        return ""

    def denied(self, key: Key) -> SpecError | None:
        """Why a job may not have all the children that it asks for; news of it feeds the job."""
        self._count()
        return self.ledger.refusal(key)

    # ------------------------------------------------------------ what the API server shows

    def seen(self, kind: str, raw: Object) -> set[Key]:
        """Take in an object as a watch shows it; the jobs for which that is news."""
        return self._taken(kind, raw) | self._freed(kind)

    def _taken(self, kind: str, raw: Object) -> set[Key]:
        metadata = raw["metadata"]
        found: Id = (kind, metadata["namespace"], metadata["name"])
        if metadata["uid"] in self.deleted_uids:
            return set()
        known = self.objects.get(found)
        if known is not None and version(known) >= version(raw):
            return set()
        key = key_of(kind, raw)
        keys = {key}
        if known is not None:
            keys.add(key_of(kind, known))
            self._drop(found)
        self.objects[found] = raw
        self.by_uid[metadata["uid"]] = found
        if key is not None and kind != KIND:
            self.by_job.setdefault(key, {})[found] = raw
        self._note(found, key)
        return {job for job in keys if job is not None}

    def gone(self, kind: str, raw: Object) -> set[Key]:
        """Take in that an object of this UID exists no more; the job it belonged to."""
        uid = raw["metadata"]["uid"]
        self.deleted_uids.pop(uid, None)
        found = self.by_uid.get(uid)
        if found is not None:
            self._drop(found)
        key = key_of(kind, raw)
        return (set() if key is None else {key}) | self._freed(kind)

    def listed(
        self, kind: str, namespace: str, items: Iterable[Object], list_version: int
    ) -> set[Key]:
        """Take in a whole list of a kind (`namespace` empty: of all); the jobs it concerns."""
        keys: set[Key | None] = set()
        uids = set()
        for item in items:
            uids.add(item["metadata"]["uid"])
            self._taken(kind, item)
            keys.add(key_of(kind, item))
        for found, raw in list(self._of(kind, namespace)):
            if raw["metadata"]["uid"] not in uids and version(raw) <= list_version:
                self._drop(found)
                keys.add(key_of(kind, raw))
        for uid, found in list(self.deleted_uids.items()):
            if found[0] == kind and namespace in ("", found[1]) and uid not in uids:
                del self.deleted_uids[uid]
        return {key for key in keys if key is not None} | self._freed(kind)

    def failed(self, kind: str, found: EventFailure) -> set[Key]:
        """Take in an Event of a StatefulSet or a pod; the job that it concerns, if any."""
        known = self.failures.get(found.uid)
        if kind != "DELETED":
            if known is None or known.event == found.event or known.telling <= found.telling:
                self.failures[found.uid] = found  # a list is in the order of names, not of times
        elif known is not None and known.event == found.event:
            del self.failures[found.uid]
        raw = self.objects.get(self.by_uid.get(found.uid, ("", "", "")))
        key = key_of(raw["kind"], raw) if raw is not None else None
        return set() if key is None else {key}

    def failures_listed(self, namespace: str, items: Iterable[EventFailure]) -> set[Key]:
        for uid in [u for u, each in self.failures.items() if namespace in ("", each.namespace)]:
            del self.failures[uid]
        return {key for item in items for key in self.failed("ADDED", item)}

    # ------------------------------------------------------------ what this operator has done

    def written(self, raw: Object) -> None:
        self._taken(raw["kind"], slim(raw["kind"], raw))

    def deleted(self, uid: str) -> None:
        """Note that the API server has no object of this UID any more."""
        found = self.by_uid.get(uid)
        if found is not None:
            self.deleted_uids[uid] = found
            self._drop(found)

    def lost(self, uid: str) -> None:
        """Forget an object that the API server did not find, until a watch or a list shows it."""
        if (found := self.by_uid.get(uid)) is not None:
            self._drop(found)

    def _of(self, kind: str, namespace: str) -> Iterator[tuple[Id, Object]]:
        for found, raw in self.objects.items():
            if found[0] == kind and namespace in ("", found[1]):
                yield found, raw

    def _note(self, found: Id, key: Key | None) -> None:
        """Have the ledger read a job again when it, or its manifest accepted last, has changed."""
        of_job = found[0] == KIND
        if key is not None and (of_job or found == ("ConfigMap", key[0], accepted_name(key[1]))):
            self.uncounted.add(key)

    def _count(self) -> None:
        for key in self.uncounted:
            accepted = self.objects.get(("ConfigMap", key[0], accepted_name(key[1])))
            self.ledger.note(key, self.job(key), accepted)
        self.uncounted.clear()

    def _freed(self, kind: str) -> set[Key]:
        """Jobs for which there is room now, after news of what counts."""
        if kind not in (KIND, "ConfigMap") or not self.ledger.told:
            return set()
        self._count()
        return self.ledger.freed()

    def _drop(self, found: Id) -> None:
        raw = self.objects.pop(found)
        self.by_uid.pop(raw["metadata"]["uid"], None)
        key = key_of(found[0], raw)
        self._note(found, key)
        children = self.by_job.get(key) if key is not None else None
        if children is not None:
            children.pop(found, None)
            if not children and key is not None:
                del self.by_job[key]


def version(raw: Mapping[str, Any]) -> int:
    return int(raw["metadata"]["resourceVersion"])


def manifest(raw: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what an edit by a person changes, and a write of the status does not."""
    metadata = raw["metadata"]
    return metadata["uid"], metadata.get("generation"), metadata.get("annotations")


def key_of(kind: str, raw: Mapping[str, Any]) -> Key | None:
    """Return the job that an object is or that its label names; None: no job's."""
    metadata = raw["metadata"]
    if kind == KIND:
        return metadata["namespace"], metadata["name"]
    name = (metadata.get("labels") or {}).get(Label.JOB)
    return (metadata["namespace"], name) if name else None


def slim(kind: str, raw: Object) -> Object:
    """Remove from `raw`, in place, what nothing here reads."""
    metadata = raw["metadata"]
    metadata.pop("managedFields", None)
    if kind == "Pod":
        spec = raw.get("spec") or {}
        for group in ("containers", "initContainers"):
            for container in spec.get(group) or []:
                for name in UNREAD_OF_CONTAINERS & container.keys():
                    del container[name]
    return raw


def failure(raw: Object) -> EventFailure | None:
    """Return what is kept of an Event: nothing, unless it is one of those that are read."""
    of = raw["involvedObject"]
    if raw.get("reason") not in FAILURES.get(of.get("kind", ""), ()):
        return None
    at = (raw.get("series") or {}).get("lastObservedTime") or raw.get("lastTimestamp")
    return EventFailure(
        uid=of.get("uid", ""),
        namespace=raw["metadata"]["namespace"],
        event=raw["metadata"]["name"],
        message=SANDBOX.sub("...", raw.get("message") or "")[:MESSAGE_CHARACTERS_MAX],
        at=at or raw.get("eventTime") or raw["metadata"]["creationTimestamp"],
    )


def slim_node(raw: Object) -> Object:
    """Keep what decisions need of a Node or a Lease: of a Node of 20 kB about 1 kB."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in KEPT_METADATA if name in metadata},
        "spec": {name: spec[name] for name in KEPT_SPEC if name in spec},
        "status": {name: status.get(name) or [] for name in ("conditions", "addresses")},
    }
