"""Events of a job: one for each change of a condition, and one for each pod that is replaced."""

import hashlib
from collections.abc import Mapping
from typing import Any

from atoll_operator.api.conditions import Condition
from atoll_operator.api.reasons import FALSE, TRUE, WARNINGS
from atoll_operator.api.spec import API_VERSION, KIND
from atoll_operator.kube.names import COMPONENT

MESSAGE_CHARACTERS_MAX = 1000  # the API server refuses more than 1024
NODE_LOST = "NodeLost"
REVERTED = "ChildReverted"
EXPECTED_TYPES = frozenset({"Suspended", "Complete"})  # no warning: the user asked for it
EXPECTED_REASONS = frozenset({"Complete", "Suspended", "Starting", "WaitingForSyncer"})


def event(
    job: Mapping[str, Any], reason: str, message: str, now: str, *, warning: bool
) -> dict[str, Any]:
    """A core/v1 Event about a job.

    Its name is a hash of what it says and of `now` (RFC 3339, whole seconds), so that the same
    Event written twice in one second is one object.
    """
    metadata = job["metadata"]
    name = metadata["name"]
    text = f"{metadata['uid']} {reason} {message} {now}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": name,
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "reason": reason,
        "message": message[:MESSAGE_CHARACTERS_MAX],
        "type": "Warning" if warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def of_transition(job: Mapping[str, Any], condition: Condition, now: str) -> dict[str, Any]:
    """The Event for a condition whose status has changed.

    It is a Warning when the condition has become bad and a person may have to act: not while a
    job starts, is suspended or is complete.
    """
    bad_when = TRUE if condition.type in WARNINGS else FALSE
    expected = condition.type in EXPECTED_TYPES or condition.reason in EXPECTED_REASONS
    said = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
    warning = condition.status == bad_when and not expected
    return event(job, f"{condition.type}{condition.status}", said, now, warning=warning)


def of_replacement(job: Mapping[str, Any], pod: str, reason: str, now: str) -> dict[str, Any]:
    """The Event for a pod that is deleted because its node is lost."""
    message = f"{pod} is made again on another node: {reason}"
    return event(job, NODE_LOST, message, now, warning=True)


def of_revert(job: Mapping[str, Any], kind: str, name: str, text: str, now: str) -> dict[str, Any]:
    """The Event for a child that somebody has changed and that is as the job says again."""
    message = f"{kind} {name} was changed: {text}; edit the job, not what it owns"
    return event(job, REVERTED, message, now, warning=True)
