"""What the operator sees, as values: parsed from raw objects, nothing decided."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atoll_operator.kube.names import POD_INDEX_LABEL, Annotation
from atoll_operator.kube.plan import pods as templates
from atoll_protos.names import Label, slot_name

OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a job."""

    name: str
    uid: str
    role: str
    region: str = ""
    ordinal: int = -1
    shard: int = -1
    node: str = ""  # empty: not scheduled
    address: str = ""
    phase: str = ""
    ready: bool = False
    terminating: bool = False
    template: str = ""
    exit_code: int | None = None  # of the container's last end
    exit_message: str = ""
    waiting: str = ""  # why its container does not run
    unschedulable: str = ""
    excluded: tuple[str, ...] = ()

    @property
    def slot(self) -> str:
        """Of a learner."""
        return slot_name(self.region, self.ordinal)

    @property
    def child(self) -> tuple[str, int]:
        """What it is an instance of: (role, ordinal or shard)."""
        return self.role, self.shard if self.shard >= 0 else self.ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `silent_seconds`: its Lease is unchanged for so long by the operator's clock."""

    name: str
    region: str = ""
    ready: bool = True
    out_of_service: bool = False
    silent_seconds: float | None = None  # None: never seen a Lease of it
    settled_seconds: float = float("inf")  # since the last gap in watching Leases
    lease_seconds: float = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A StatefulSet or Deployment as it stands."""

    name: str
    kind: str
    replicas: int
    observed: bool  # its controller has seen the present spec
    applied: str
    template: str
    excluded: tuple[str, ...] = ()
    replaced: Mapping[int, tuple[int, str]] = field(default_factory=dict)


def pod(raw: Raw) -> Pod:
    """From the API server's object."""
    metadata, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels = metadata.get("labels", {})
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    code, message, waiting = _container(status)
    scheduled = conditions.get("PodScheduled", {})
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(Label.ROLE, ""),
        region=labels.get(Label.REGION, ""),
        ordinal=int(labels.get(POD_INDEX_LABEL, "-1")),
        shard=int(labels.get(Label.SHARD, "-1")),
        node=spec.get("nodeName") or "",
        address=status.get("podIP") or "",
        phase=status.get("phase", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        terminating="deletionTimestamp" in metadata,
        template=(metadata.get("annotations") or {}).get(Annotation.TEMPLATE, ""),
        exit_code=code,
        exit_message=message,
        waiting=waiting,
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        excluded=templates.excluded_nodes(raw),
    )


def _container(status: Raw) -> tuple[int | None, str, str]:
    """Exit code and message of the first container's last end, and why it waits."""
    containers = status.get("containerStatuses") or [{}]
    now, last = containers[0].get("state") or {}, containers[0].get("lastState") or {}
    ended = now.get("terminated") or last.get("terminated") or {}
    waiting = (now.get("waiting") or {}).get("reason", "")
    return ended.get("exitCode"), (ended.get("message") or "").strip(), waiting


def node(raw: Raw, region_label: str) -> Node:
    """From the API server's object; what the Lease says comes later."""
    conditions = raw.get("status", {}).get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    taints = raw.get("spec", {}).get("taints") or []
    return Node(
        name=raw["metadata"]["name"],
        region=(raw["metadata"].get("labels") or {}).get(region_label, ""),
        ready=ready,
        out_of_service=any(each.get("key") == OUT_OF_SERVICE_TAINT for each in taints),
    )


def workload(raw: Raw) -> Workload:
    """From the API server's StatefulSet or Deployment."""
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
        template=(template["metadata"].get("annotations") or {}).get(Annotation.TEMPLATE, ""),
        excluded=templates.excluded_nodes(template),
        replaced={int(key): (count, uid) for key, (count, uid) in replaced.items()},
    )


def replaced_text(replaced: Mapping[int, tuple[int, str]]) -> str:
    """The annotation that `workload` reads back; empty when nothing was replaced."""
    if not replaced:
        return ""
    return json.dumps({str(key): list(replaced[key]) for key in sorted(replaced)})


def replace_region(found: Pod, region: str) -> Pod:
    """The pod, as one of this region."""
    return replace(found, region=region)


def by_name(found: Sequence[Workload]) -> dict[str, Workload]:
    """Workloads by name; a job's names differ."""
    return {each.name: each for each in found}
