"""The manifest that a job runs with: the present one, or else the one that was accepted last.

A manifest that was good enough to start a job can be followed by one that this operator cannot
honour: an edit asks for what is not supported, or another version of the operator reads the
object. A job that trains must not suffer from that. So the manifest of each accepted pass is kept
beside the job, in the ConfigMap `<job>-accepted`, and a job whose present manifest cannot be
accepted goes on with that one in every respect: its children stay as they are, lost nodes are
replaced, its end is seen. `Accepted` is False and names the field. Only `spec.suspend` is taken
from the present manifest all the same, so that a job can always be stopped.

The object is stored as the API server gave it, and read like any other: fields that this version
does not know are ignored (`api.manifest.from_object`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll_operator.api import support
from atoll_operator.api.manifest import from_object
from atoll_operator.api.spec import Job
from atoll_operator.api.status import Status
from atoll_operator.kube.names import accepted_name
from atoll_operator.kube.objects import key_of
from atoll_operator.kube.observation import Object
from atoll_operator.kube.plan import restore
from atoll_operator.kube.plan.phase import NOT_SUPPORTED
from atoll_operator.kube.plan.restore import Former
from atoll_protos.errors import SpecError

INVALID = "Invalid"  # reason of Accepted when the manifest cannot be read
RESTORE_REFUSED = "RestoreRefused"  # likewise, when what it restores is not there or does not fit
NOBODY = Former()
SPEC = "spec.json"  # key in the ConfigMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The job to run, and what is wrong with its present manifest."""

    job: Job | None  # None: neither the present manifest nor an earlier one can be read
    spec: Mapping[str, Any] = field(default_factory=dict)  # that `job` was read from
    reason: str = ""  # of the condition Accepted; empty: nothing is wrong
    error: str = ""


def read(raw: Object, children: Iterable[Object], former: Former = NOBODY) -> Reading:
    """The manifest to act on; `children` are the job's objects, which hold the last accepted.

    `former` is the job that `restore.named` names.
    """
    present = None
    try:
        present = from_object(raw, stored=True)
    except SpecError as wrong:
        reason, error = INVALID, str(wrong)
    else:
        refused = support.on_a_cluster(present)
        if refused is None:
            return _restored(present, raw, raw["spec"], former)
        reason, error = NOT_SUPPORTED, str(refused)
    last = _last(raw, children)
    if last is None:
        return Reading(job=present, reason=reason, error=error)
    spec, job = last
    found = _restored(job, raw, spec, former)
    return found if found.error else replace(found, reason=reason, error=error)


def _restored(job: Job, raw: Object, spec: Mapping[str, Any], former: Former) -> Reading:
    """The job with the state that it takes up. Where it cannot, nothing is made or changed."""
    try:
        job = restore.restored(job, Status.read(raw.get("status")), former)
    except SpecError as wrong:
        return Reading(job=None, reason=RESTORE_REFUSED, error=str(wrong))
    return Reading(job=job, spec=spec)


def _last(raw: Object, children: Iterable[Object]) -> tuple[Mapping[str, Any], Job] | None:
    """The manifest that was accepted last, if there is one that this version can honour."""
    name = accepted_name(raw["metadata"]["name"])
    for each in children:
        if key_of(each) != ("ConfigMap", name):
            continue
        spec = json.loads((each.get("data") or {}).get(SPEC) or "{}")
        present = raw.get("spec")
        suspend = present.get("suspend") if isinstance(present, dict) else None
        if isinstance(suspend, bool):
            spec["suspend"] = suspend
        try:
            job = from_object({"metadata": raw["metadata"], "spec": spec}, stored=True)
        except SpecError:
            return None
        return (spec, job) if support.on_a_cluster(job) is None else None
    return None


def text(spec: Mapping[str, Any]) -> str:
    """What the ConfigMap holds."""
    return json.dumps(spec, sort_keys=True)
