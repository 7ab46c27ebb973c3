"""How raw objects of the API server are read: into values, and whose they are.

Every field of a status is optional, so what is absent is forgiven. Nothing here decides anything.

What the operator has noted in annotations and ConfigMaps, read whatever has become of it.

Whoever may edit what a job owns may spoil a note. So every reader here takes any text and never
raises: what cannot be read counts as not noted. The object's next apply then writes the note as it
has to be and tells so in an Event (`plan.applied`).
"""

import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from decimal import Decimal
from typing import Any

from atoll_operator.api.status.job_status import Status
from atoll_operator.api.status.reasons import NODE_LOSS_HELD
from atoll_operator.kube.names import (
    HOSTNAME_FIELD,
    OUT_OF_SERVICE_TAINT,
    POD_INDEX_LABEL,
    QUEUE_LABEL,
    RUN_FILE,
    TRAINING_GATE,
    Annotation,
)
from atoll_operator.kube.observed.cache import EventFailure
from atoll_operator.kube.observed.observation import RESTARTED, Node, Pod, Raw, Replaced, Workload
from atoll_protos.names import Label

QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]+|[numkKMGTPE]?i?)")
TENS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
TWOS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(text: Any) -> Decimal | None:
    found = QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    number, suffix = found.groups()
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return Decimal(number + suffix)
    if suffix in TWOS:
        return Decimal(number) * (1 << TWOS[suffix])
    return Decimal(number).scaleb(TENS[suffix]) if suffix in TENS else None


NOTHING = "{}"
WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")  # a node's name, or a UID
NUMBER_MAX, DIGITS_MAX = 2**53, 16


def document(text: str | None) -> dict[str, Any]:
    """Read the JSON object that a text holds; empty where it holds none."""
    try:
        found = json.loads(text or NOTHING)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def replaced(text: str | None) -> dict[int, Replaced]:
    """Read what was replaced, by a pod's index in its workload; the reverse of `of_replaced`."""
    found = {}
    for key, values in document(text).items():
        match values:
            case [count, str(uid), since, recent] if (
                _is_number(_index(key))
                and all(_is_number(each) for each in (count, since, recent))
                and _is_word(uid)
            ):
                found[int(key)] = Replaced(count=count, uid=uid, since=since, recent=recent)
    return found


def of_replaced(given: Mapping[int, Replaced]) -> str:
    return json.dumps({str(key): list(astuple(given[key])) for key in sorted(given)})


def suspects(text: str | None) -> dict[str, int]:
    """Since when each node is suspected, in UNIX seconds; the reverse of `of_suspects`."""
    return {
        node: since
        for node, since in document(text).items()
        if _is_word(node) and _is_number(since)
    }


def of_suspects(given: Mapping[str, int]) -> str:
    return json.dumps(given, sort_keys=True)


def is_spoilt(raw: Mapping[str, Any]) -> bool:
    found = raw["metadata"].get("annotations") or {}
    counts, nodes = map(found.get, (Annotation.REPLACED, Annotation.SUSPECTS))
    return (bool(counts) and of_replaced(replaced(counts)) != counts) or (
        bool(nodes) and of_suspects(suspects(nodes)) != nodes
    )


def run_files(children: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return run files' texts by the names of their ConfigMaps, without those that were spoilt."""
    configs = [child for child in children if child["kind"] == "ConfigMap"]
    found = {
        config["metadata"]["name"]: (config.get("data") or {}).get(RUN_FILE) for config in configs
    }
    return {name: text for name, text in found.items() if text and _lists_regions(document(text))}


def _lists_regions(file: Mapping[str, Any]) -> bool:
    regions = file.get("regions", [])
    return (
        bool(file)
        and isinstance(regions, list)
        and all(
            isinstance(region, dict) and isinstance(region.get("name"), str) for region in regions
        )
    )


def _index(key: str) -> int | None:
    return int(key) if key.isascii() and key.isdigit() and len(key) < DIGITS_MAX else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < NUMBER_MAX


def _is_word(value: object) -> bool:
    return isinstance(value, str) and WORD.fullmatch(value) is not None


RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"  # what `kubectl rollout restart` writes
BOOT_SECONDS = 10.0  # between the making of a Node and its first condition
START_SECONDS = 5.0  # that a pod takes which has all that it mounts
HELD_UP_SECONDS = 10.0  # on its node, after which a failure to start is no passing one
FAILURE_SECONDS_MAX = 600.0  # a kubelet that still fails says so more often
STARTING_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})  # every start has these
TELLING_WAITS = frozenset(
    {
        "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull",
        "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "RunContainerError",
    }
)  # fmt: skip
DETAILS_CHARACTERS_MAX = 300
PLAIN_ENDS = frozenset({"", "Completed", "Error"})  # these say no more than the exit code


def pod(raw: Raw, containers: Mapping[str, str] | None = None) -> Pod:
    """Read a Pod from the API server's object; `containers` has the name of Atoll's one by role."""
    metadata, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels = metadata.get("labels", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    own = _container(raw, (containers or {}).get(labels.get(Label.ROLE, ""), ""))
    now, last = own.get("state") or {}, own.get("lastState") or {}
    ended = now.get("terminated") or last.get("terminated") or {}
    waits = now.get("waiting") or {}
    waiting, details = waits.get("reason", ""), _details(waits)
    if waiting in STARTING_WAITS:
        waiting = _other_waits(raw.get("status", {}), own) or waiting
    scheduled = conditions.get("PodScheduled", {})
    index, learner = _number(labels.get(POD_INDEX_LABEL)), _learner_of(labels)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(Label.ROLE, ""),
        region=labels.get(Label.REGION, ""),
        ordinal=index if learner is None else learner,
        host=0 if learner is None else index,
        has_own_set=learner is not None,
        shard=_number(labels.get(Label.SHARD)),
        node=spec.get("nodeName") or "",
        address=status.get("podIP") or "",
        phase=status.get("phase", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        gated=any(
            gate.get("conditionType") == TRAINING_GATE for gate in spec.get("readinessGates") or []
        ),
        trains=conditions.get(TRAINING_GATE, {}).get("status") == "True",
        terminating="deletionTimestamp" in metadata,
        template=_template(metadata),
        made_at=_time(metadata.get("creationTimestamp")),
        taken_at=_taken_at(status, conditions),
        exit_code=ended.get("exitCode"),
        began_at=_time(ended.get("startedAt")),
        exit_reason="" if ended.get("reason", "") in PLAIN_ENDS else ended["reason"],
        exit_message=(ended.get("message") or "").strip(),
        restarts=own.get("restartCount", 0),
        runs="running" in now,
        started=bool(own.get("started")),
        waiting=waiting,
        details=details,
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        excluded=excluded_nodes(raw),
    )


def cannot_start(found: Pod, now: float) -> bool:
    """Whether a pod has a node and its container has not started for START_SECONDS."""
    young = found.made_at is None or now - found.made_at < START_SECONDS
    return _starts(found) and not young


def held_up(found: Pod, failure: EventFailure | None, now: float) -> str:
    """Why a pod cannot start, in the words of an Event; empty while that may pass by itself."""
    if failure is None or found.taken_at is None or not _starts(found):
        return ""
    young, old = now - found.taken_at < HELD_UP_SECONDS, FAILURE_SECONDS_MAX
    return "" if young or now - seconds_of(failure.at) > old else failure.message


def _starts(found: Pod) -> bool:
    waits = found.phase == "Pending" and found.waiting in STARTING_WAITS and not found.terminating
    return bool(found.node) and waits


def _taken_at(status: Raw, conditions: Mapping[str, Raw]) -> float | None:
    """Since when a kubelet tries to mount what a pod needs and to make its network."""
    inits = (each.get("state") or {} for each in status.get("initContainerStatuses") or [])
    if any("running" in init or "terminated" in init for init in inits):
        return None
    has_both = conditions.get("PodReadyToStartContainers", {}).get("status") == "True"
    return None if has_both else _time(status.get("startTime"))


def _learner_of(labels: Mapping[str, str]) -> int | None:
    """Which learner of its region the pod is a host of; None: the pod is a learner by itself."""
    found = _number(labels.get(Label.SLOT, "").removeprefix(f"{labels.get(Label.REGION, '')}-"))
    return found if found >= 0 else None


def _template(metadata: Raw) -> str:
    """Return a role's template's hash, and when `kubectl rollout restart` was called, if it was."""
    annotations = metadata.get("annotations") or {}
    found, restarted = annotations.get(Annotation.TEMPLATE, ""), annotations.get(RESTARTED_AT)
    return f"{found}{RESTARTED}{restarted}" if restarted else str(found)


def _number(text: str | None) -> int:
    """Read the number in a label, -1 if there is none: anybody may put any label on a pod."""
    return int(text) if text and text.isascii() and text.isdigit() else -1


def _container(raw: Raw, name: str) -> Raw:
    """Return the status of Atoll's container; empty before there is one.

    It is found by its `name`: the kubelet sorts containers by name, and a webhook may put a sidecar
    before ours. In a pod of an older template, with another name, it is the spec's first one.
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
    """Return the kubelet's words for a container that waits; empty where nothing is new.

    Those of CrashLoopBackOff only count seconds, and each change of a message writes the status.
    """
    if waits.get("reason", "") not in TELLING_WAITS:
        return ""
    return str(waits.get("message") or "")[:DETAILS_CHARACTERS_MAX]


def node(raw: Raw, region_label: str) -> Node:
    """Read a Node from the API server's object; `plan.replacements.Leases` adds its Lease."""
    conditions = raw.get("status", {}).get("conditions") or []
    state: Raw = next((condition for condition in conditions if condition["type"] == "Ready"), {})
    ready = state.get("status") == "True"
    taints = raw.get("spec", {}).get("taints") or []
    return Node(
        name=raw["metadata"]["name"],
        region=(raw["metadata"].get("labels") or {}).get(region_label, ""),
        address=_outer_address(raw.get("status", {}).get("addresses") or []),
        ready=ready,
        never_ready=not ready and _as_made(state, raw["metadata"]),
        out_of_service=any(taint.get("key") == OUT_OF_SERVICE_TAINT for taint in taints),
    )


def _outer_address(addresses: Sequence[Raw]) -> str:
    """Return a node's address for those outside of its cluster: an external one, if it has one."""
    for kind in ("ExternalIP", "ExternalDNS", "InternalIP"):
        for address in addresses:
            if address.get("type") == kind and address.get("address"):
                return str(address["address"])
    return ""


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


def workload(raw: Raw, failed: EventFailure | None = None, pods: Iterable[Pod] = ()) -> Workload:
    """`failed`: the last Event about a pod that was not made; `pods`: those that there are."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    annotations = metadata.get("annotations") or {}
    template = spec["template"]
    return Workload(
        name=metadata["name"],
        kind=raw["kind"],
        replicas=spec.get("replicas", 1),
        observed=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        template=_template(template["metadata"]),
        excluded=excluded_nodes(template),
        queued=QUEUE_LABEL in (metadata.get("labels") or {}),
        trouble=_pods_refused(status) or _failed(spec, status, failed, pods),
        replaced=replaced(annotations.get(Annotation.REPLACED)),
        suspects=suspects(annotations.get(Annotation.SUSPECTS)),
    )


def _failed(spec: Raw, status: Raw, failed: EventFailure | None, pods: Iterable[Pod]) -> str:
    """Why pods of a StatefulSet are missing, unless one was made after the failure."""
    if failed is None or status.get("replicas", 0) >= spec.get("replicas", 1):
        return ""
    made = [pod.made_at for pod in pods if pod.made_at is not None]
    return "" if max(made, default=0.0) > seconds_of(failed.at) else failed.message


def _pods_refused(status: Raw) -> str:
    """Return the error that a Deployment's controller got when it could not make a pod."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return str(
                condition.get("message") or condition.get("reason") or "its pods are refused"
            )
    return ""


def excluded_nodes(template: Raw) -> tuple[str, ...]:
    """Read the nodes that a pod or a pod template excludes (`plan.pods` writes them)."""
    affinity = template.get("spec", {}).get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    found = {
        each["values"][0]
        for term in required.get("nodeSelectorTerms", [])
        for each in term.get("matchFields", [])
        if each.get("key") == HOSTNAME_FIELD and each.get("operator") == "NotIn"
    }
    return tuple(sorted(found))


def mounted_secrets(workloads: Iterable[Raw]) -> set[str]:
    """Names of the Secrets that pods of these workloads mount: without them none could start."""
    specs = [workload["spec"]["template"].get("spec") or {} for workload in workloads]
    volumes = [volume for spec in specs for volume in spec.get("volumes") or []]
    return {str((volume.get("secret") or {}).get("secretName") or "") for volume in volumes}


def controller(raw: Raw) -> Raw | None:
    owners = raw["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def is_of(raw: Raw, job: str, uid: str) -> bool:
    """Whether an object that was read is the job's: controlled by it, or made by it."""
    owner, labels = controller(raw), raw["metadata"].get("labels") or {}
    if owner is not None:
        return bool(owner["uid"] == uid)
    if raw.get("kind") == "PersistentVolumeClaim":
        return bool(labels.get(Label.JOB) == job)
    return bool(labels.get(Label.JOB_UID) == uid)


def belongs(raw: Raw, job: Raw) -> bool:
    """Whether an object with the job's name as a label is this job's, and no former one's."""
    uid = job["metadata"]["uid"]
    if raw.get("kind") != "Pod":
        return is_of(raw, job["metadata"]["name"], uid)
    return bool((raw["metadata"].get("labels") or {}).get(Label.JOB_UID) == uid)


def ready_and_held(job: Raw) -> tuple[str, bool]:
    status = Status.read(job.get("status"))
    reasons = {condition.type: condition.reason for condition in status.conditions or []}
    return reasons.get("Ready", ""), reasons.get("Degraded") == NODE_LOSS_HELD


def key_of(child: Raw) -> tuple[str, str]:
    return child["kind"], child["metadata"]["name"]


# ---------------------------------------------------------------- times


def rfc3339(seconds: float) -> str:
    """UNIX seconds as the API server writes times: whole seconds, UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def written_at(metadata: Raw) -> float:
    """When an object was last changed, by the clock of the API server (UNIX seconds)."""
    times = [manager.get("time") for manager in metadata.get("managedFields") or []]
    return max((seconds_of(time_) for time_ in times if time_), default=0.0)


def _time(text: str | None) -> float | None:
    return seconds_of(text) if text else None


def seconds_of(text: str) -> float:
    """Reverse `rfc3339`: UNIX seconds."""
    return datetime.datetime.fromisoformat(text).timestamp()
