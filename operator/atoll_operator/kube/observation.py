"""What one pass has seen of a job, as frozen values, and how raw objects are read into them.

An `Observation` is everything that `plan.planner.plan` may rest a decision on. It is built once
per pass by `observe.Observer` and never changes afterwards: a decision that needs one more fact
gets one more field here. Ages are seconds at the moment of the observation, by the operator's own
monotonic clock, so that the plan compares no clocks.

Nothing in this file decides anything. The functions read a raw object of the API server and
forgive what is absent, because every field of a status is optional.
"""

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Self

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status
from atoll_operator.kube.cache import FailedCreate
from atoll_operator.kube.names import (
    HOSTNAME_FIELD,
    LEARNER_ROLE,
    OUT_OF_SERVICE_TAINT,
    POD_INDEX_LABEL,
    SHARD_ROLE,
    Annotation,
    evaluator_name,
    learner_set,
    shard_name,
)
from atoll_protos.names import Label, slot_name

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"  # what `kubectl rollout restart` writes
DAY_SECONDS = 24 * 3600.0  # of a budget of replacements
BOOT_SECONDS = 10.0  # between the making of a Node and its first condition
RESTARTED = "@"  # between a template's hash and that time
WORKLOADS = frozenset({"StatefulSet", "Deployment"})
# HTTP statuses with which the API server answers to a wrong object. That of an unknown field or of
# a wrong type in a server-side apply is 500.
WRONG = frozenset({400, 422, 500})
STARTING_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})  # every start has these
TELLING_WAITS = frozenset(
    {
        "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull",
        "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "RunContainerError",
    }
)  # fmt: skip
DETAILS_CHARACTERS_MAX = 300
PLAIN_ENDS = frozenset({"", "Completed", "Error"})  # these say no more than the exit code

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
    shard: int = -1
    node: str = ""  # empty: not scheduled
    address: str = ""
    phase: str = ""
    ready: bool = False
    terminating: bool = False
    template: str = ""  # hash of the role's template that it was made from, and of its restart
    made_at: float | None = None  # UNIX seconds
    exit_code: int | None = None  # of the container's last end
    exit_reason: str = ""  # such as OOMKilled, where it says more than the code
    exit_message: str = ""
    restarts: int = 0  # of the container, on this node
    runs: bool = False  # the container runs now, perhaps after an end
    waiting: str = ""  # why its container, or one that it needs, does not run
    details: str = ""  # the kubelet's words for that, where they name what is wrong
    unschedulable: str = ""  # the scheduler's message
    excluded: tuple[str, ...] = ()  # nodes that its affinity excludes
    unlabelled: bool = False  # made by an earlier version, without the job's UID as a label

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
    def slot(self) -> str:
        """The slot of a learner's pod, such as `us-east-0`."""
        return slot_name(self.region, self.ordinal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, with what its Lease showed by the operator's monotonic clock."""

    name: str
    region: str = ""
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
        """Replacements of the present day of the budget, which begins with the first of them."""
        return self.recent if now - self.since < DAY_SECONDS else 0

    def once_more(self, uid: str, now: float) -> Self:
        """After one more replacement, of the pod with this UID."""
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
    applied: str  # hash of what the operator applied
    job_uid: str = ""  # the label of its pods; empty: made by an earlier version
    template: str  # hash of the role's pod template, and when `kubectl rollout restart` came
    excluded: tuple[str, ...] = ()  # nodes that its template excludes
    trouble: str = ""  # why its controller cannot make pods
    replaced: Mapping[int, Replaced] = field(default_factory=dict)  # by ordinal
    suspects: Mapping[str, int] = field(default_factory=dict)  # since, UNIX seconds, by node

    @property
    def hash(self) -> str:
        """The hash of the role's pod template alone."""
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
class Refusal:
    """A child that the API server refused to take."""

    kind: str
    name: str
    applied: str  # hash of what was to be applied
    message: str  # the API server's
    status: int = 0  # HTTP
    wait_seconds: float = 0.0  # until it is tried again; not above 0: now

    @property
    def of_template(self) -> bool:
        """Whether a pod template is wrong, which no time can heal."""
        return self.kind in WORKLOADS and self.status in WRONG


def texts_of(refused: Sequence[Refusal]) -> tuple[str, ...]:
    """Refusals in words, for the condition Accepted; children with one message share a sentence."""
    names: dict[str, list[str]] = {}
    for each in refused:
        names.setdefault(each.message, []).append(f"{each.kind} {each.name}")
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
    storm_seconds: Mapping[str, float] = field(default_factory=dict)  # since it, by region
    final_seconds: float | None = None  # since the registrar first said Complete
    still_seconds: float = 0.0  # since the job's tick last moved
    unwritten_seconds: float = float("inf")  # since the last write of the status
    writes_a_minute: int = 0  # of the status, within the last one
    refused: tuple[Refusal, ...] = ()  # children that the API server has not taken yet
    undeleted: tuple[str, ...] = ()  # deletes that the API server has refused, in words
    deleted_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Since a pod was deleted, by its place (`place_of`) and the cause."""
    reverts: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By kind and name of a child that was reverted: seconds until that may be done again."""
    settled: Mapping[tuple[str, str, str], frozenset[tuple[str, str]]] = field(default_factory=dict)
    """By kind, name and hash of what was applied: what the API server writes in its own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    lease_ages: Mapping[str, float] = field(default_factory=dict)  # by node, deleted ones too
    remembered: Remembered = field(default_factory=Remembered)

    @property
    def replies(self) -> tuple[pb.StatusReply | None, ...]:
        """Each shard's answer, None where there is no young one."""
        return self.remembered.replies

    @property
    def registrar(self) -> pb.StatusReply | None:
        """Shard 0's answer: it alone knows slots, sessions and owners."""
        return self.replies[0] if self.replies else None

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return str(self.raw["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """The UID of the job's object."""
        return str(self.raw["metadata"]["uid"])

    @property
    def status(self) -> Status:
        """The status as earlier passes wrote it; empty before the first."""
        return Status.read(self.raw.get("status"))


# ---------------------------------------------------------------- reading raw objects


def pod(raw: Raw, containers: Mapping[str, str] | None = None) -> Pod:
    """A Pod from the API server's object; `containers` has the name of Atoll's one by role."""
    metadata, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels = metadata.get("labels", {})
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    own = _container(raw, (containers or {}).get(labels.get(Label.ROLE, ""), ""))
    now, last = own.get("state") or {}, own.get("lastState") or {}
    ended = now.get("terminated") or last.get("terminated") or {}
    waits = now.get("waiting") or {}
    waiting, details = waits.get("reason", ""), _details(waits)
    if waiting in STARTING_WAITS:
        waiting = _other_waits(raw.get("status", {}), own) or waiting
    scheduled = conditions.get("PodScheduled", {})
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(Label.ROLE, ""),
        region=labels.get(Label.REGION, ""),
        ordinal=_number(labels.get(POD_INDEX_LABEL)),
        shard=_number(labels.get(Label.SHARD)),
        node=spec.get("nodeName") or "",
        address=status.get("podIP") or "",
        phase=status.get("phase", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        terminating="deletionTimestamp" in metadata,
        template=_template(metadata),
        made_at=_time(metadata.get("creationTimestamp")),
        exit_code=ended.get("exitCode"),
        exit_reason="" if ended.get("reason", "") in PLAIN_ENDS else ended["reason"],
        exit_message=(ended.get("message") or "").strip(),
        restarts=own.get("restartCount", 0),
        runs="running" in now,
        waiting=waiting,
        details=details,
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        excluded=excluded_nodes(raw),
        unlabelled=Label.JOB_UID not in labels,
    )


def _template(metadata: Raw) -> str:
    """The hash of a role's template, and when `kubectl rollout restart` was called, if it was."""
    annotations = metadata.get("annotations") or {}
    found, restarted = annotations.get(Annotation.TEMPLATE, ""), annotations.get(RESTARTED_AT)
    return f"{found}{RESTARTED}{restarted}" if restarted else str(found)


def _number(text: str | None) -> int:
    """The number in a label, -1 if there is none: anybody may put any label on a pod."""
    return int(text) if text and text.isascii() and text.isdigit() else -1


def _container(raw: Raw, name: str) -> Raw:
    """The status of Atoll's container; empty before there is one.

    The kubelet sorts containers by name, and a webhook may put a sidecar before ours, so the
    container is found by its `name` in the template; in a pod of an older template it may have
    another one, and then it is the first of the pod's spec.
    """
    status = raw.get("status", {})
    found = {each.get("name", ""): each for each in status.get("containerStatuses") or []}
    specs = raw.get("spec", {}).get("containers") or []
    if name not in found and specs:
        name = specs[0].get("name", "")
    return found.get(name) or (next(iter(found.values())) if len(found) == 1 else {})


def _other_waits(status: Raw, own: Raw) -> str:
    """Which init container or sidecar keeps a pod from running, and why; empty: none."""
    for title, field_name in (("init container", "init"), ("container", "")):
        key = f"{field_name}ContainerStatuses" if field_name else "containerStatuses"
        for each in status.get(key) or []:
            waits = ((each.get("state") or {}).get("waiting") or {}).get("reason", "")
            if each is own or waits in STARTING_WAITS:
                continue
            last = (each.get("lastState") or {}).get("terminated") or {}
            code = f", last exit code {last['exitCode']}" if "exitCode" in last else ""
            if last.get("reason", "") not in PLAIN_ENDS:
                code += f" ({last['reason']})"
            details = _details((each.get("state") or {}).get("waiting") or {})
            said = f": {details}" if details else ""
            return f"{title} {each.get('name', '')} is in {waits}{code}{said}"
    return ""


def _details(waits: Raw) -> str:
    """The kubelet's words for a container that waits; empty where they name nothing new.

    Those of CrashLoopBackOff only count the seconds until the next start, so they are left out:
    each change of a message is a write of the status.
    """
    if waits.get("reason", "") not in TELLING_WAITS:
        return ""
    return str(waits.get("message") or "")[:DETAILS_CHARACTERS_MAX]


def node(raw: Raw, region_label: str) -> Node:
    """A Node from the API server's object; `plan.nodes.Leases` adds what its Lease shows."""
    conditions = raw.get("status", {}).get("conditions") or []
    state: Raw = next((each for each in conditions if each["type"] == "Ready"), {})
    ready = state.get("status") == "True"
    taints = raw.get("spec", {}).get("taints") or []
    return Node(
        name=raw["metadata"]["name"],
        region=(raw["metadata"].get("labels") or {}).get(region_label, ""),
        ready=ready,
        never_ready=not ready and _as_made(state, raw["metadata"]),
        out_of_service=any(each.get("key") == OUT_OF_SERVICE_TAINT for each in taints),
    )


def _as_made(condition: Raw, metadata: Raw) -> bool:
    """Whether a condition still is what it was when its object was made, or is not there yet.

    The kubelet dates the one, the API server the other, so their clocks may differ a little.
    """
    changed, made = condition.get("lastTransitionTime"), metadata.get("creationTimestamp")
    if not condition:
        return True
    if not changed or not made:
        return False
    return seconds_of(changed) - seconds_of(made) <= BOOT_SECONDS


def workload(raw: Raw, failed: FailedCreate | None = None, pods: Iterable[Pod] = ()) -> Workload:
    """A Workload from the API server's StatefulSet or Deployment.

    `failed` is the last Event about a pod of a StatefulSet that could not be made, and `pods` are
    those that there are.
    """
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    annotations = metadata.get("annotations") or {}
    replaced = json.loads(annotations.get(Annotation.REPLACED) or "{}")
    template = spec["template"]
    return Workload(
        name=metadata["name"],
        kind=raw["kind"],
        replicas=spec.get("replicas", 1),
        observed=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        applied=annotations.get(Annotation.APPLIED, ""),
        job_uid=(template["metadata"].get("labels") or {}).get(Label.JOB_UID, ""),
        template=_template(template["metadata"]),
        excluded=excluded_nodes(template),
        trouble=_pods_refused(status) or _failed(spec, status, failed, pods),
        replaced={int(key): _replaced(*each) for key, each in replaced.items()},
        suspects=json.loads(annotations.get(Annotation.SUSPECTS) or "{}"),
    )


def _failed(spec: Raw, status: Raw, failed: FailedCreate | None, pods: Iterable[Pod]) -> str:
    """Why pods of a StatefulSet are missing, unless one was made after the failure."""
    if failed is None or status.get("replicas", 0) >= spec.get("replicas", 1):
        return ""
    made = [pod.made_at for pod in pods if pod.made_at is not None]
    return "" if max(made, default=0.0) > seconds_of(failed.at) else failed.message


def _pods_refused(status: Raw) -> str:
    """What a Deployment's controller was told when it could not make a pod."""
    for each in status.get("conditions") or []:
        if each["type"] == "ReplicaFailure" and each["status"] == "True":
            return str(each.get("message") or each.get("reason") or "its pods are refused")
    return ""


def _replaced(count: int = 0, uid: str = "", since: int = 0, recent: int = 0) -> Replaced:
    return Replaced(count=count, uid=uid, since=since, recent=recent)


def replaced_text(replaced: Mapping[int, Replaced]) -> str:
    """The annotation that `workload` reads back; empty when nothing was replaced."""
    if not replaced:
        return ""
    return json.dumps({str(key): list(astuple(replaced[key])) for key in sorted(replaced)})


def suspects_text(suspects: Mapping[str, int]) -> str:
    """The annotation of suspected nodes; empty when there are none."""
    return json.dumps(suspects, sort_keys=True) if suspects else ""


def excluded_nodes(template: Raw) -> tuple[str, ...]:
    """The nodes that a pod or a pod template excludes (`plan.pods` writes them)."""
    affinity = template.get("spec", {}).get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    found = {
        each["values"][0]
        for term in required.get("nodeSelectorTerms", [])
        for each in term.get("matchFields", [])
        if each.get("key") == HOSTNAME_FIELD and each.get("operator") == "NotIn"
    }
    return tuple(sorted(found))


def controller(raw: Raw) -> Raw | None:
    """The owner reference of the object's controller."""
    owners = raw["metadata"].get("ownerReferences") or []
    return next((each for each in owners if each.get("controller")), None)


def is_of(raw: Raw, job: str, uid: str) -> bool:
    """Whether an object that was read is the job's: controlled by it, or made by it."""
    owner, labels = controller(raw), raw["metadata"].get("labels") or {}
    if owner is not None:
        return bool(owner["uid"] == uid)
    if raw.get("kind") == "PersistentVolumeClaim":
        return bool(labels.get(Label.JOB) == job)
    return bool(labels.get(Label.JOB_UID) == uid)


def belongs(raw: Raw, job: Raw) -> bool:
    """Whether an object with the job's name as a label is this job's, and no former one's.

    Objects that the operator makes say so themselves (`is_of`). A pod says it by the job's UID as a
    label. One of an earlier version, without that label, is a former job's if it is older than this
    job.
    """
    metadata, uid = raw["metadata"], job["metadata"]["uid"]
    if raw.get("kind") != "Pod":
        return is_of(raw, job["metadata"]["name"], uid)
    label = (metadata.get("labels") or {}).get(Label.JOB_UID)
    if label is not None:
        return bool(label == uid)
    made, job_made = metadata.get("creationTimestamp"), job["metadata"].get("creationTimestamp")
    return not made or not job_made or seconds_of(made) >= seconds_of(job_made)


def with_region(found: Pod, region: str) -> Pod:
    """The pod, in this region unless it carries the label of one."""
    return found if found.region else replace(found, region=region)


def workload_name(job: str, pod: Pod) -> str:
    """Name of the StatefulSet or Deployment that makes this pod."""
    if pod.role == LEARNER_ROLE:
        return learner_set(job, pod.region)
    return shard_name(job, pod.shard) if pod.role == SHARD_ROLE else evaluator_name(job)


def place_of(job: str, pod: Pod) -> str:
    """What stays of a pod when it is made again: its name, or the Deployment of one pod."""
    return pod.name if pod.role == LEARNER_ROLE else workload_name(job, pod)


def by_name(found: Sequence[Workload]) -> dict[str, Workload]:
    """Workloads by name; the names of one job's workloads differ."""
    return {each.name: each for each in found}


def key_of(child: Raw) -> tuple[str, str]:
    """Kind and name, which identify a child within its namespace."""
    return child["kind"], child["metadata"]["name"]


# ---------------------------------------------------------------- times


def rfc3339(seconds: float) -> str:
    """UNIX seconds as the API server writes times: whole seconds, UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str | None) -> float | None:
    return seconds_of(text) if text else None


def seconds_of(text: str) -> float:
    """The reverse of `rfc3339`: UNIX seconds."""
    return datetime.datetime.fromisoformat(text).timestamp()
