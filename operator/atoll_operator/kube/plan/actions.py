"""What one pass does and says, as frozen values: the effectful side decides nothing.

Events: one Event object stands for one thing that may happen again; then it gets the new message
and a higher count (`effects.report`). Conditions that follow what pods and learners do may flap
(SETTLING_TYPES): their change is told when it has lasted for SETTLE_SECONDS. One that only follows
from what the job does (`silent`) is told already. A Warning is a change for the worse that a person
may have to act on.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import API_VERSION, KIND
from atoll_operator.api.status.job_status import Condition
from atoll_operator.api.status.reasons import FALSE, TRUE, WARNINGS
from atoll_operator.kube.names import COMPONENT
from atoll_operator.kube.observed.observation import ChildRefusal, Object, Pod
from atoll_operator.kube.plan.certificates import NOTHING, CertificateWork

MESSAGE_CHARACTERS_MAX = 1000  # the API server refuses more than 1024
LEARNER_RESTARTED = "LearnerRestarted"
NODE_LOST = "NodeLost"
REVERTED = "ChildReverted"
RUN_LOST = "RunLost"
EXPECTED_TYPES = frozenset({"Suspended", "Complete"})  # no warning: the user asked for it
EXPECTED_REASONS = frozenset(
    {"Complete", "Suspended", "Starting", "WaitingForSyncer", "LearnersStarting"}
)
EXPECTED_AT_START = frozenset({"LearnersMissing", "WaitingForLearners", "AllWell"})
FOLLOWING = frozenset({"Complete", "Suspended", "Failed", "NotAccepted", "SyncerSilent"})
SETTLING_TYPES = frozenset({"SyncerReady", "Progressing", "Degraded"})
SETTLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something to tell about a job."""

    job: Mapping[str, Any]  # metadata of the job's object
    reason: str
    message: str
    at: str  # RFC 3339
    subject: str = ""  # what it is about, if not the job as a whole: each has an Event of its own
    warning: bool = False
    condition: str = ""  # type of the condition whose status has changed
    before: str = ""  # its status until then
    after: str = ""
    silent: bool = False  # told already by what it follows from: it only takes back what waits

    @property
    def settles(self) -> bool:
        return self.condition in SETTLING_TYPES

    @property
    def name(self) -> str:
        """The same for everything that is told by one object."""
        kind = "Warning" if self.warning else "Normal"
        text = f"{self.job['uid']} {self.reason} {self.subject} {kind}"
        return f"{self.job['name']}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def to_object(self, first: str, count: int) -> dict[str, Any]:
        """Make a core/v1 Event that happened first at `first`, and `count` times in all."""
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name, "namespace": self.job["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": self.job["name"],
                "namespace": self.job["namespace"],
                "uid": self.job["uid"],
            },
            "reason": self.reason,
            "message": self.message[:MESSAGE_CHARACTERS_MAX],
            "type": "Warning" if self.warning else "Normal",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": first,
            "lastTimestamp": self.at,
            "count": count,
        }


def of_transition(
    job: Mapping[str, Any], condition: Condition, before: str, now: str, *, begun: bool
) -> Event:
    """Make the Event for a condition whose status changed; `begun`: the job has trained already."""
    bad_when = TRUE if condition.type in WARNINGS else FALSE
    expected = (
        condition.type in EXPECTED_TYPES
        or condition.reason in EXPECTED_REASONS
        or (not begun and condition.reason in EXPECTED_AT_START)
    )
    follows = condition.reason in FOLLOWING or (expected and not begun)
    said = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
    return Event(
        job=job["metadata"],
        reason=f"{condition.type}{condition.status}",
        message=said,
        at=now,
        warning=condition.status == bad_when and not expected,
        condition=condition.type,
        before=before,
        after=condition.status,
        silent=condition.type in SETTLING_TYPES and follows,
    )


def run_lost(job: Mapping[str, Any], old: str, new: str, step: int | None, now: str) -> Event:
    """All learners and shards have lost what they held, and shard 0 has begun another run."""
    where = "" if step is None else f", now at step {step}"
    message = (
        f"run {old} is lost: no learner and no shard has anything of it. Run {new} has begun{where}"
        " with the newest whole checkpoint of the job, or from the start where there is none;"
        " the log of shard 0 says which. To begin with another one, give it as"
        " spec.checkpoint.from of a new job"
    )
    return warning(job, RUN_LOST, old, message, now)


def warning(job: Mapping[str, Any], reason: str, subject: str, message: str, now: str) -> Event:
    """Make the Event for what was done about one pod or child, and why."""
    return Event(
        job=job["metadata"], reason=reason, message=message, at=now, subject=subject, warning=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """That a pod's learner is in training, or that it is not any more."""

    pod: str  # name
    uid: str
    trains: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWrite:
    """A status to write, and what to say once it is written."""

    status: Object
    changed: tuple[Condition, ...] = ()  # conditions whose status has changed
    events: tuple[Event, ...] = ()  # one for each of them, and for a run that is lost
    urgent: bool = True  # more than progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """An object to delete, if it still has this UID."""

    kind: str
    name: str
    uid: str
    reason: str
    key: tuple[str, str] | None = None  # of a pod: its place and the cause (`restarts`)
    event: Event | None = None  # to be written when it is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """A child that is applied again because somebody else has changed it."""

    key: tuple[str, str]  # kind and name
    text: str  # which fields, with the values found and wanted
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one pass does to the children of a job, in this order."""

    check: tuple[Object, ...] = ()  # those of `apply` that the API server tries first
    partly: bool = True  # what it finds right is applied, whatever else it refuses
    certificates: CertificateWork = NOTHING  # Secrets to write before anything that mounts them
    apply: tuple[Object, ...] = ()  # children by server-side apply; live ones carry their UID
    reverts: tuple[Revert, ...] = ()  # those of them that somebody else has changed
    prune: tuple[Deletion, ...] = ()  # children that are no longer asked for
    refused: tuple[ChildRefusal, ...] = ()  # wanted as they are, and not taken by the API server
    wait_seconds: float | None = None  # until the next revert that was put off


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOwner:
    """One SetOwner to say: from now on `uid` alone may act for the slot."""

    pod: str  # name of the pod that is to own the slot
    slot: str
    uid: str
    generation: int | None  # of the slot's owner; None: ask for it first


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReplacement:
    """A pod on a lost node that may be deleted now, after the last checks of `apply`."""

    pod: Pod
    reason: str
    silent_renewal: str | None  # renewTime that must still stand; None: the Lease decides nothing
    retire_generation: int | None  # of the slot's owner, to retire it; None: no need to
    silent_seconds: float  # since the node's last sign of life
    key: tuple[str, str]  # its place and the cause
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one pass does, in this order, and what it says."""

    at: float  # when the observation was made, monotonic seconds
    namespace: str
    job: str
    registrar_address: str = ""
    intent: pb.StatusRequest = field(default_factory=pb.StatusRequest)
    """What the shards are told with each question; empty: nothing."""
    storms: tuple[str, ...] = ()  # regions, to be remembered

    children: Changes = Changes()
    refused: tuple[ChildRefusal, ...] = ()  # children and certificates: still asked for, refused
    replace: tuple[PodReplacement, ...] = ()
    delete: tuple[Deletion, ...] = ()  # pods, with their grace
    owners: tuple[SlotOwner, ...] = ()
    restart: tuple[Deletion, ...] = ()  # pods of an old template, with their grace
    expire: Deletion | None = None  # the job itself

    marks: tuple[Mark, ...] = ()  # of learners' pods that begin or cease to train
    training: frozenset[str] = frozenset()  # UIDs of pods whose learner trains
    pods: tuple[Pod, ...] = ()
    status: StatusWrite | None = None  # None: nothing to write
    pause_seconds: float | None = None  # until the next pass; None: only an event brings one

    @property
    def acts(self) -> bool:
        """Whether it changes anything but the status: then the shards' answers grow old."""
        changed = self.children.apply or self.children.prune
        return bool(changed or self.replace or self.delete or self.owners or self.restart)
