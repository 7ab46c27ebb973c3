"""Events of a job: on transitions of conditions, and on what is done about lost nodes; pure."""

import hashlib
from collections.abc import Mapping
from typing import Any

from atoll_operator.api.conditions import FALSE, TRUE, WARNINGS, Condition
from atoll_operator.kube.names import GROUP, VERSION

COMPONENT = "atoll-operator"
MESSAGE_CHARACTERS_MAX = 1000
EXPECTED = frozenset({"Complete", "Suspended", "Starting", "WaitingForSyncer"})


def event(
    job: Mapping[str, Any], reason: str, message: str, now: str, *, warning: bool
) -> dict[str, Any]:
    """A core/v1 Event; the same one said twice in a second has one name."""
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
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "DecoupledTrainingJob",
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
    """What a condition's change says; only trouble that somebody may want to mend is a warning."""
    bad_when = TRUE if condition.type in WARNINGS else FALSE
    expected = condition.type in ("Suspended", "Complete") or condition.reason in EXPECTED
    said = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
    warning = condition.status == bad_when and not expected
    return event(job, f"{condition.type}{condition.status}", said, now, warning=warning)
