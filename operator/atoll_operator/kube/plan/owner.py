"""The job's object as the owner of its children: their labels, selectors and metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll_operator.api.spec import API_VERSION, KIND
from atoll_operator.kube.names import COMPONENT
from atoll_operator.kube.observation import Object
from atoll_protos.names import Label

INSTANCE = "app.kubernetes.io/instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The job's object: what all of its children have from it."""

    namespace: str
    name: str
    uid: str

    def labels(self, role: str, **more: str) -> dict[str, str]:
        """Labels of an object of this role."""
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

    def selector(self, role: str, unmarked: bool, **more: str) -> dict[str, str]:
        """Labels that tell the pods of a role; without the job's UID where some do not have it."""
        own = {} if unmarked else {Label.JOB_UID: self.uid}
        return {Label.JOB: self.name, **own, Label.ROLE: role, **more}

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
