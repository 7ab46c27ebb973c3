"""The job's object as the owner of its children: their labels, selectors and metadata."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from atoll_operator.api.job.spec import API_VERSION, KIND
from atoll_operator.kube.names import COMPONENT, Annotation
from atoll_operator.kube.observed.observation import Object
from atoll_protos.names import Label

INSTANCE = "app.kubernetes.io/instance"
STEP = re.compile(r"[1-9][0-9]{0,15}")
GENERATION_MAX = 999_999_999  # that an identity can spell


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOwner:
    """The job's object: what all of its children have from it."""

    namespace: str
    name: str
    uid: str
    generations: Mapping[str, int] = field(default_factory=dict)
    """By region: the lowest generation of certificates that counts; others have been revoked."""
    machines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Those with certificates of their own, and their slots; without any: it is shut out."""
    checkpoint: int = 0  # the step of one that somebody has asked for

    @classmethod
    def of(cls, raw: Object, name: str) -> Self:
        """The owner that a job's object is, under the name of the manifest that is in force."""
        metadata = raw["metadata"]
        annotations = metadata.get("annotations") or {}
        return cls(
            namespace=metadata["namespace"],
            name=name,
            uid=metadata["uid"],
            generations=generations(annotations),
            machines=machines(annotations),
            checkpoint=asked_checkpoint(annotations),
        )

    def labels(self, role: str, **more: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "atoll",
            INSTANCE: self.name,
            "app.kubernetes.io/component": role,
            "app.kubernetes.io/managed-by": COMPONENT,
            Label.JOB: self.name,
            Label.JOB_UID: self.uid,
            Label.ROLE: role,
            **more,
        }

    def selector(self, role: str, **more: str) -> dict[str, str]:
        return {Label.JOB: self.name, Label.JOB_UID: self.uid, Label.ROLE: role, **more}

    def child(
        self, kind: str, api: str, name: str, labels: Mapping[str, str], **body: Any
    ) -> Object:
        """An object of the job's namespace that is deleted with the job."""
        owner = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": dict(labels),
            "annotations": {},
            "ownerReferences": [owner],
        }
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def asked_checkpoint(annotations: Mapping[str, Any]) -> int:
    """The step that `atoll checkpoint JOB` has written; spoilt text counts as nothing."""
    found = str(annotations.get(Annotation.CHECKPOINT, ""))
    return int(found) if STEP.fullmatch(found) else 0


def generations(annotations: Mapping[str, Any]) -> dict[str, int]:
    """What `atoll credentials JOB --revoke REGION` has written; spoilt text counts as nothing."""
    given = _mapping(annotations, Annotation.REVOKED).items()
    return {region: n for region, n in given if type(n) is int and 0 < n <= GENERATION_MAX}


def machines(annotations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What `atoll credentials JOB --machine NAME` has written; spoilt entries are left out."""
    return {
        name: tuple(slots)
        for name, slots in _mapping(annotations, Annotation.MACHINES).items()
        if isinstance(slots, list) and all(isinstance(each, str) for each in slots)
    }


def _mapping(annotations: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        found = json.loads(annotations.get(name) or "{}")
    except (TypeError, ValueError, RecursionError):
        found = {}
    return found if isinstance(found, dict) else {}
