"""What one pass has seen of a job, as frozen values.

An `Observation` is everything that `plan.planner.plan` may rest a decision on. Ages are seconds at
the moment of the observation, by the operator's own monotonic clock, so that the plan compares no
clocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.job_status import Status
from atoll_operator.kube.names import (
    LEARNER_ROLE,
    SHARD_ROLE,
    evaluator_name,
    hosts_set,
    learner_set,
    shard_name,
)
from atoll_operator.kube.observed.cache import EventFailure
from atoll_protos.errors import SpecError
from atoll_protos.exits import is_failure, is_permanent
from atoll_protos.names import slot_name

DAY_SECONDS = 24 * 3600.0  # of a budget of replacements
BUSY_STATES = frozenset({pb.SLOT_TRAINING, pb.SLOT_STALLED})  # of a slot that has trained
RESTARTED = "@"  # between a template's hash and the time of `kubectl rollout restart`
OLD_TEMPLATE = "its template has changed"  # why a pod is deleted, as it is remembered
KILLED = frozenset({137, 143})  # exit codes of SIGKILL, also for memory, and SIGTERM
WORKLOADS = frozenset({"StatefulSet", "Deployment"})
# HTTP statuses with which the API server answers to a wrong object. That of an unknown field or of
# a wrong type in a server-side apply is 500, as is that of a webhook that is away.
WRONG = frozenset({400, 422, 500})
AWAY = "failed calling webhook"

Raw = Mapping[str, Any]
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a job. Fields that do not apply to its role keep their defaults."""

    name: str
    uid: str
    role: str
    region: str = ""  # of a learner; shards and evaluators carry no label of a region
    ordinal: int = -1  # of a learner
    host: int = 0  # of a learner of several hosts: which of them; its head is on host 0
    has_own_set: bool = False  # the learner is a StatefulSet of its own, a pod for each host
    shard: int = -1
    node: str = ""  # empty: not scheduled
    address: str = ""
    phase: str = ""
    ready: bool = False
    gated: bool = False  # it is Ready only while this operator has marked it as in training
    trains: bool = False  # so it is marked
    terminating: bool = False
    template: str = ""  # hash of the role's template that it was made from, and of its restart
    made_at: float | None = None  # UNIX seconds
    taken_at: float | None = None  # UNIX seconds: when its kubelet began to mount what it needs
    exit_code: int | None = None  # of the container's last end
    began_at: float | None = None  # UNIX seconds: when the container began that has ended
    exit_reason: str = ""  # such as OOMKilled, where it says more than the code
    exit_message: str = ""
    restarts: int = 0  # of the container, on this node
    runs: bool = False  # the container runs now, perhaps after an end
    started: bool = False  # and has passed its startup probe: a shard serves, or waits
    waiting: str = ""  # why its container, or one that it needs, does not run
    details: str = ""  # the kubelet's words for that, where they name what is wrong
    held_up: str = ""  # why its kubelet cannot start it: what an Event says
    unschedulable: str = ""  # the scheduler's message
    excluded: tuple[str, ...] = ()  # nodes that its affinity excludes

    @property
    def ended(self) -> bool:
        """Whether the pod is only a record, such as an evicted one: it never runs again."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def stands_still(self) -> bool:
        """Whether no container of Atoll's runs in it, as far as is known: it loses nothing."""
        if self.ended or not self.node:
            return True
        return not self.runs and (bool(self.waiting) or self.exit_code is not None)

    @property
    def crashed(self) -> bool:
        """Whether its last end was its own failure: no kill, not permanent, no lost host (75)."""
        code = self.exit_code
        if code is None or code in KILLED or is_permanent(code):
            return False
        return is_failure(code)

    @property
    def slot(self) -> str:
        return slot_name(self.region, self.ordinal)

    @property
    def is_head(self) -> bool:
        """Whether a learner's session and its owner's words are this pod's: it is of host 0."""
        return self.role == LEARNER_ROLE and self.host == 0

    @property
    def learner(self) -> str:
        """The learner's name among the job's objects: its pod's, or that of its hosts' set."""
        return self.name.rpartition("-")[0] if self.has_own_set else self.name

    @property
    def index(self) -> int:
        return self.host if self.has_own_set else self.ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, with what its Lease showed by the operator's monotonic clock."""

    name: str
    region: str = ""
    address: str = ""  # where other clusters reach it, as far as its status says
    ready: bool = True
    never_ready: bool = False  # it has not been Ready since it was made: it is booting
    not_ready_seconds: float = 0.0  # since this process first saw it not Ready
    out_of_service: bool = False
    renewed: str = ""  # renewTime of its Lease as last seen
    silent_seconds: float | None = None  # since renewTime last changed; None: no Lease seen
    settled_seconds: float = float("inf")  # since the last gap in watching Leases
    lease_seconds: float = 40.0  # leaseDurationSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """How often a slot's pod was made again elsewhere; kept in an annotation of the StatefulSet."""

    count: int = 0  # in the job's life
    uid: str = ""  # of the last pod that was replaced
    since: int = 0  # UNIX seconds: when the present day of the budget began
    recent: int = 0  # since then

    def within_a_day(self, now: float) -> int:
        """Count replacements of the budget's present day, which begins with the first of them."""
        return self.recent if now - self.since < DAY_SECONDS else 0

    def once_more(self, uid: str, now: float) -> Self:
        recent = self.within_a_day(now)
        since = self.since if recent else int(now)
        return type(self)(count=self.count + 1, uid=uid, since=since, recent=recent + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A StatefulSet or Deployment as it stands."""

    name: str
    kind: str
    replicas: int
    observed: bool  # its controller has seen the present spec
    template: str  # hash of the role's pod template, and when `kubectl rollout restart` came
    excluded: tuple[str, ...] = ()  # nodes that its template excludes
    queued: bool = False  # Kueue admits its pods, and lets nobody change what places them
    trouble: str = ""  # why its controller cannot make pods
    replaced: Mapping[int, Replaced] = field(default_factory=dict)  # by the pod's index
    suspects: Mapping[str, int] = field(default_factory=dict)  # since, UNIX seconds, by node

    @property
    def hash(self) -> str:
        return self.template.partition(RESTARTED)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A pod that was deleted for a lost node and whose successor does not work yet."""

    role: str
    name: str
    old_uid: str
    shard: int = -1
    lost_at: float  # monotonic: the node's last sign of life


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRefusal:
    """A child that the API server refused to take."""

    kind: str
    name: str
    applied: str  # hash of what was to be applied
    message: str  # the API server's
    status: int = 0  # HTTP
    tries: int = 0  # again, of the same
    again_at: float = 0.0  # when it is tried again, monotonic
    wait_seconds: float = 0.0  # until then; not above 0: now

    @property
    def of_template(self) -> bool:
        """Whether a pod template is wrong, which no time can heal."""
        wrong = self.status in WRONG and AWAY not in self.message
        return self.kind in WORKLOADS and wrong


def texts_of(refused: Sequence[ChildRefusal]) -> tuple[str, ...]:
    """Refusals in words, for the condition Accepted; children with one message share a sentence."""
    names: dict[str, list[str]] = {}
    for refusal in refused:
        names.setdefault(refusal.message, []).append(f"{refusal.kind} {refusal.name}")
    return tuple(f"{', '.join(found)}: {message}" for message, found in names.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What earlier passes left behind, read once (see `memory`). Ages in seconds."""

    replies: tuple[pb.StatusReply | None, ...] = ()  # by shard; None: no answer young enough
    asked_at: str = ""  # RFC 3339: when the newest of them was asked for
    registrar_address: str = ""  # host:port of shard 0; empty: not known
    silent_seconds: Mapping[int, float] = field(default_factory=dict)  # by shard
    absent_seconds: Mapping[str, float] = field(default_factory=dict)  # by slot
    stalled_seconds: Mapping[str, float] = field(default_factory=dict)  # by UID of the slot's pod
    idle_seconds: Mapping[str, float] = field(default_factory=dict)
    """By UID of a head's pod: since the registrar shows it as neither Training nor Stalled."""
    left_seconds: Mapping[str, float] = field(default_factory=dict)
    """By slot: since its learner left because it was told to, until it trains again."""
    wanted_seconds: Mapping[str, float] = field(default_factory=dict)
    """By slot: since the job asks for it; without those that it did when this operator started."""
    troubles: Mapping[str, str] = field(default_factory=dict)  # why a slot could not join again
    crashes: Mapping[str, int] = field(default_factory=dict)  # of a host's own process, by pod UID
    storm_seconds: Mapping[str, float] = field(default_factory=dict)  # since it, by region
    final_seconds: float | None = None  # since the registrar first said Complete
    suspended_seconds: float = 0.0  # since this operator first saw the job suspended
    still_seconds: float = 0.0  # since the job's tick last moved
    unwritten_seconds: float = float("inf")  # since the last write of the status
    writes_a_minute: int = 0  # of the status, within the last one
    refused: tuple[ChildRefusal, ...] = ()  # children that the API server has not taken yet
    undeleted: tuple[str, ...] = ()  # deletes that the API server has refused, in words
    deleted_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Since a pod was deleted, by its place (`place_of`) and the cause."""
    reverts: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By kind and name of a child that was reverted: seconds until that may be done again."""
    settled: Mapping[tuple[str, str, str], frozenset[tuple[str, str]]] = field(default_factory=dict)
    """By kind, name and hash of what was applied: what the API server writes in its own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRefusal:
    """Why a shard and this operator do not take each other, in words."""

    text: str
    other_run: bool = False  # the shard is one of another run of the job: the former one is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSeen:
    """What was read of a Secret with certificates, without its content."""

    name: str
    uid: str = ""  # empty: it is not there
    version: str = ""  # its resourceVersion
    written_at: float = 0.0  # UNIX seconds: when anybody last changed it
    obstacle: str = ""  # why it may not be written, and the remedy: it is another's
    reason: str = ""  # why it is to be made, or brought, again; empty: it is good
    due_at: float = float("inf")  # UNIX seconds from which one that others made expires soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A Secret of a region that the job has not any more."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """What was read of a job's Secrets with certificates."""

    secrets: Mapping[str, SecretSeen] = field(default_factory=dict)  # by name
    unread: str = ""  # why they could not be read
    stale: tuple[Stale, ...] = ()

    def of(self, name: str) -> SecretSeen:
        return self.secrets.get(name) or SecretSeen(name=name, reason="it is not there")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the watches show of a job, as raw objects: a pass begins with it."""

    at: float  # monotonic seconds
    raw: Object  # the job's object
    children: tuple[Object, ...]  # of every kind that the operator makes, and pods
    failures: Mapping[str, EventFailure]  # by UID of a StatefulSet or pod
    refused: bool  # a shard and this operator did not take each other
    unread: str = ""  # why nothing of it but the job may be judged
    denied: SpecError | None = None  # why it may not have all the children that it asks for


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that one pass knows of one job."""

    at: float  # monotonic seconds; what is remembered of this pass is dated by it
    raw: Object  # the job's object as the API server has it
    job: Job | None = None  # None: the manifest is invalid, or another controller runs the job
    accepted: Raw = field(default_factory=dict)  # the spec that `job` was read from, as stored
    reason: str = ""  # of the condition Accepted, when something is wrong with the manifest
    error: str = ""  # what is wrong with it; with a job, that is the one accepted before
    unread: str = ""  # why the job's objects could not be read; then nothing below is known
    children: tuple[Object, ...] = ()  # raw, of every kind that the operator makes
    pods: tuple[Pod, ...] = ()
    workloads: Mapping[str, Workload] = field(default_factory=dict)  # by name
    nodes: Mapping[str, Node] | None = None  # by name; None: not listed yet
    lease_ages: Mapping[str, float] = field(default_factory=dict)  # by pod's node, deleted or not
    certificates: Certificates | None = None  # None: the job needs none now
    refusals: Mapping[int, ShardRefusal] = field(default_factory=dict)  # by shard
    tls: bool | None = None  # how its processes talk; None: none has been started
    remembered: Remembered = field(default_factory=Remembered)

    @property
    def replies(self) -> tuple[pb.StatusReply | None, ...]:
        return self.remembered.replies

    @property
    def registrar(self) -> pb.StatusReply | None:
        """Shard 0's answer: it alone knows slots, sessions and owners."""
        return self.replies[0] if self.replies else None

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @cached_property
    def status(self) -> Status:
        return Status.read(self.raw.get("status"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """UIDs of pods by what the syncer shows."""

    dead: frozenset[str]  # the session or the shard is dead, or another pod serves the shard
    unseen: frozenset[str]  # the syncer cannot be asked, or knows nothing of such pods


def serves(pod: Pod) -> bool:
    """Whether it is a shard's pod that is Ready and goes on."""
    return pod.role == SHARD_ROLE and pod.ready and not pod.terminating


def is_followed(pod: Pod, pods: Iterable[Pod]) -> bool:
    """Whether another pod of the same shard serves, so that nothing is lost with this one."""
    return pod.role == SHARD_ROLE and any(
        serves(other) and other.shard == pod.shard and other.uid != pod.uid for other in pods
    )


def workload_name(job: str, pod: Pod) -> str:
    if pod.role == LEARNER_ROLE:
        return hosts_set(job, pod.slot) if pod.has_own_set else learner_set(job, pod.region)
    if pod.role == SHARD_ROLE:
        return shard_name(job, pod.shard)
    return evaluator_name(job)


def by_workload(job: str, pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        found.setdefault(workload_name(job, pod), []).append(pod)
    return found


def place_of(job: str, pod: Pod) -> str:
    """Return what stays of a pod made again: its name, or the Deployment of one pod."""
    return pod.name if pod.role == LEARNER_ROLE else workload_name(job, pod)


def with_hosts(uids: frozenset[str], pods: Iterable[Pod]) -> frozenset[str]:
    """Add to these UIDs those of the other hosts' pods of the same learners."""
    several = [pod for pod in pods if pod.has_own_set]
    slots = {pod.slot for pod in several if pod.is_head and pod.uid in uids}
    return uids | {pod.uid for pod in several if pod.slot in slots and not pod.is_head}
