"""Events of a job: what is told of a change, as a value. `recorder` writes it, and how often.

One Event object stands for one thing that may happen again and again: one change of one condition,
the loss of one pod's node, the change of one child by somebody else. When it happens again, the
object gets the new message and a higher count, as Kubernetes' own controllers do it, and no second
object is made.

Conditions that follow what pods and learners do may flap (SETTLING_TYPES). Their change is told
when it has lasted for SETTLE_SECONDS; one that is taken back earlier is not told at all. Nor is
one that only follows from what the job does, since that is told already: while it starts nothing of
it is there yet, and when it is suspended, complete or failed, or when its shards do not answer, all
of them change at once. A Warning
is a change for the worse that a person may have to act on.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll_operator.api.reasons import FALSE, TRUE, WARNINGS
from atoll_operator.api.shown import Condition
from atoll_operator.api.spec import API_VERSION, KIND
from atoll_operator.kube.names import COMPONENT

MESSAGE_CHARACTERS_MAX = 1000  # the API server refuses more than 1024
LEARNER_RESTARTED = "LearnerRestarted"
NODE_LOST = "NodeLost"
REVERTED = "ChildReverted"
EXPECTED_TYPES = frozenset({"Suspended", "Complete"})  # no warning: the user asked for it
EXPECTED_REASONS = frozenset(
    {"Complete", "Suspended", "Starting", "WaitingForSyncer", "LearnersStarting"}
)
EXPECTED_AT_START = frozenset({"LearnersMissing", "WaitingForLearners", "TooFew", "AllWell"})
FOLLOWING = frozenset({"Complete", "Suspended", "Failed", "NotAccepted", "SyncerSilent"})
SETTLING_TYPES = frozenset({"SyncerReady", "LearnersAvailable", "Progressing", "Degraded"})
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
        """Whether it is told only when it has lasted."""
        return self.condition in SETTLING_TYPES

    @property
    def name(self) -> str:
        """The same for everything that is told by one object."""
        kind = "Warning" if self.warning else "Normal"
        text = f"{self.job['uid']} {self.reason} {self.subject} {kind}"
        return f"{self.job['name']}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def to_object(self, first: str, count: int) -> dict[str, Any]:
        """A core/v1 Event; it happened for the first time at `first`, and `count` times in all."""
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
    """The Event for a condition whose status has changed; `begun`: the job has trained already."""
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


def of_replacement(
    job: Mapping[str, Any], pod: str, reason: str, now: str, *, again: bool = True
) -> Event:
    """The Event for a pod that is deleted because its node is lost; `again`: it comes back."""
    message = f"{pod} is {'made again on another node' if again else 'removed'}: {reason}"
    return Event(
        job=job["metadata"], reason=NODE_LOST, message=message, at=now, subject=pod, warning=True
    )


def of_restart(job: Mapping[str, Any], pod: str, reason: str, now: str) -> Event:
    """The Event for a learner's pod that is made again because it does not work as it is."""
    return Event(
        job=job["metadata"], reason=LEARNER_RESTARTED, message=f"{pod} is made again: {reason}",
        at=now, subject=pod, warning=True,
    )  # fmt: skip


def of_revert(job: Mapping[str, Any], kind: str, name: str, text: str, now: str) -> Event:
    """The Event for a child that somebody has changed and that is as the job says again."""
    message = f"{kind} {name} was changed: {text}; edit the job, not what it owns"
    return Event(
        job=job["metadata"], reason=REVERTED, message=message, at=now, subject=f"{kind} {name}",
        warning=True,
    )  # fmt: skip
