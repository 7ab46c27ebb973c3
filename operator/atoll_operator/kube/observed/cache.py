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
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll_operator.api.job.spec import KIND
from atoll_protos.names import Label

Object = dict[str, Any]
Key = tuple[str, str]  # namespace and name of a job
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

    def works(self, now: float) -> None:
        self.tried_at = self.alive_at = now
        self.problem, self.broken_at = "", None

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
    left_out: set[str] = field(default_factory=set)  # namespaces that are gone (`edges.namespaces`)
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
        return [found[each] for each in sorted(found)]

    def jobs_on(self, nodes: Collection[str]) -> set[Key]:
        return {
            key
            for key, found in self.by_job.items()
            for each in found.values()
            if nodes and each["kind"] == "Pod" and each.get("spec", {}).get("nodeName") in nodes
        }

    def problem(self, namespace: str) -> str:
        """Why a namespace may not be judged: a collection that has its objects is not seen."""
        for path, sight in self.sights.items():
            if sight.namespace not in ("", namespace):
                continue
            if sight.problem:
                return f"{path} cannot be watched: {sight.problem}"
            if not sight.listed:
                return f"{path} is not listed yet"
        return ""

    def broken_seconds(self, namespace: str, now: float) -> float:
        """For how long a collection of one namespace has been out of sight, at most."""
        broken = [s.broken_at for s in self.sights.values() if s.namespace == namespace]
        return max((now - at for at in broken if at is not None), default=0.0)

    # ------------------------------------------------------------ what the API server shows

    def seen(self, kind: str, raw: Object) -> set[Key]:
        """Take in an object as a watch or an answer shows it; the jobs for which that is news."""
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
        return {each for each in keys if each is not None}

    def gone(self, kind: str, raw: Object) -> set[Key]:
        """Take in that an object of this UID exists no more; the job it belonged to."""
        uid = raw["metadata"]["uid"]
        self.deleted_uids.pop(uid, None)
        found = self.by_uid.get(uid)
        if found is not None:
            self._drop(found)
        key = key_of(kind, raw)
        return set() if key is None else {key}

    def listed(
        self, kind: str, namespace: str, items: Iterable[Object], list_version: int
    ) -> set[Key]:
        """Take in a whole list of a kind (`namespace` empty: of all); the jobs it concerns."""
        keys: set[Key | None] = set()
        uids = set()
        for each in items:
            uids.add(each["metadata"]["uid"])
            self.seen(kind, each)
            keys.add(key_of(kind, each))
        for found, raw in list(self._of(kind, namespace)):
            if raw["metadata"]["uid"] not in uids and version(raw) <= list_version:
                self._drop(found)
                keys.add(key_of(kind, raw))
        for uid, found in list(self.deleted_uids.items()):
            if found[0] == kind and namespace in ("", found[1]) and uid not in uids:
                del self.deleted_uids[uid]
        return {each for each in keys if each is not None}

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
        return {key for each in items for key in self.failed("ADDED", each)}

    # ------------------------------------------------------------ what this operator has done

    def written(self, raw: Object) -> None:
        self.seen(raw["kind"], slim(raw["kind"], raw))

    def deleted(self, uid: str) -> None:
        """Note that the API server has no object of this UID any more."""
        found = self.by_uid.get(uid)
        if found is not None:
            self.deleted_uids[uid] = found
            self._drop(found)

    def _of(self, kind: str, namespace: str) -> Iterator[tuple[Id, Object]]:
        for found, raw in self.objects.items():
            if found[0] == kind and namespace in ("", found[1]):
                yield found, raw

    def _drop(self, found: Id) -> None:
        raw = self.objects.pop(found)
        self.by_uid.pop(raw["metadata"]["uid"], None)
        key = key_of(found[0], raw)
        children = self.by_job.get(key) if key is not None else None
        if children is not None:
            children.pop(found, None)
            if not children and key is not None:
                del self.by_job[key]


def version(raw: Mapping[str, Any]) -> int:
    return int(raw["metadata"]["resourceVersion"])


def manifest(raw: Mapping[str, Any]) -> tuple[object, ...]:
    """What changes when a person edits a job, and not when its status is written."""
    metadata = raw["metadata"]
    return metadata["uid"], metadata.get("generation"), metadata.get("annotations")


def key_of(kind: str, raw: Mapping[str, Any]) -> Key | None:
    """The job that an object is, or that its label names; None: no job's."""
    metadata = raw["metadata"]
    if kind == KIND:
        return metadata["namespace"], metadata["name"]
    name = (metadata.get("labels") or {}).get(Label.JOB)
    return (metadata["namespace"], name) if name else None


def slim(kind: str, raw: Object) -> Object:
    """The object without what nothing here reads; `raw` itself is changed."""
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
    """What is kept of an Event: nothing, unless it is one of those that are read."""
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
    """What decisions need of a Node or a Lease: of a Node of 20 kB, images and all, about 1 kB."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in KEPT_METADATA if name in metadata},
        "spec": {name: spec[name] for name in KEPT_SPEC if name in spec},
        "status": {name: status.get(name) or [] for name in ("conditions", "addresses")},
    }
