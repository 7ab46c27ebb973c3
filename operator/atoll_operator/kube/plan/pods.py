"""Pod templates: the user's, with what every pod of a role needs; pure."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll_operator.api.runfile import EVALUATE, TRAIN
from atoll_operator.api.spec import Job, PodOverrides, StorageType, Template
from atoll_operator.kube.names import (
    DATA_FOLDER,
    EVALUATOR_ROLE,
    HOSTNAME_FIELD,
    LEARNER_ROLE,
    METRICS_PORT,
    POD_INDEX_LABEL,
    RUN_FILE,
    RUN_FOLDER,
    SHARD_PORT,
    SHARD_ROLE,
    Annotation,
    account_name,
)
from atoll_operator.kube.settings import Settings
from atoll_protos.environment import Env, of_learner, of_process, of_shard

NOBODY = 65532
GONE_NODE_SECONDS = 30  # the operator is faster; this is for when it is away
RUNNER = {LEARNER_ROLE: TRAIN, EVALUATOR_ROLE: EVALUATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What one role's pods get beside the user's template."""

    role: str
    labels: Mapping[str, str]
    region: str
    run_config: str
    run_hash: str
    settings: Settings
    endpoints: str
    excluded: tuple[str, ...] = ()  # nodes that are not to be scheduled on
    overrides: PodOverrides = field(default_factory=PodOverrides)


def learner(job: Job, frame: Frame) -> dict[str, Any]:
    """The pod template of a region's learners."""
    slot = f"$({Env.REGION})-$({Env.ORDINAL})"
    env = _variables(of_learner(region=frame.region, slot=slot))
    ordinal = _from_field(Env.ORDINAL, f"metadata.labels['{POD_INDEX_LABEL}']")
    env.insert(1, ordinal)  # before the slot, which refers to it
    return _pod(job, frame, job.spec.learner.template, env)


def evaluator(job: Job, frame: Frame) -> dict[str, Any]:
    """The pod template of the evaluator."""
    own = job.spec.evaluator
    return _pod(job, frame, own.template if own else Template(), [])


def shard(job: Job, frame: Frame, number: int, uid: str, claim: str) -> dict[str, Any]:
    """The pod template of one shard; its state lies in a folder of this job's own."""
    folder = f"{DATA_FOLDER}/{uid}"
    export = job.spec.export.url.removeprefix("file://") if job.spec.export else f"{folder}/export"
    env = of_shard(
        shard=number,
        listen=f"0.0.0.0:{SHARD_PORT}",
        store=f"{folder}/commits",
        tape=f"{folder}/tape.jsonl",
        export=export,
        metrics_port=METRICS_PORT,
    )
    pod = _pod(job, frame, job.spec.syncer.template, _variables(env))
    durable = job.spec.syncer.storage.type is StorageType.PERSISTENT_VOLUME_CLAIM
    source = {"persistentVolumeClaim": {"claimName": claim}} if durable else {"emptyDir": {}}
    _add_volume(pod["spec"], "atoll-data", source, DATA_FOLDER)
    container = pod["spec"]["containers"][0]
    ports = {"grpc": SHARD_PORT, "metrics": METRICS_PORT}
    container.setdefault(
        "ports", [{"name": name, "containerPort": port} for name, port in ports.items()]
    )
    probe = {"grpc": {"port": SHARD_PORT}, "timeoutSeconds": 5}
    container.setdefault("readinessProbe", {**probe, "periodSeconds": 3})
    container.setdefault("livenessProbe", {**probe, "periodSeconds": 10, "failureThreshold": 9})
    return pod


def _pod(
    job: Job, frame: Frame, template: Template, env: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    pod: dict[str, Any] = copy.deepcopy(template.model_dump(by_alias=True, exclude_unset=True))
    metadata = pod.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), **frame.labels}
    metadata["annotations"] = {
        **metadata.get("annotations", {}),
        Annotation.RUN_HASH: frame.run_hash,
    }
    spec = pod.setdefault("spec", {})
    spec.setdefault("serviceAccountName", account_name(job.name, frame.role))
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    security = spec.setdefault("securityContext", {})
    security.setdefault("runAsNonRoot", True)
    security.setdefault("runAsUser", NOBODY)
    security.setdefault("runAsGroup", NOBODY)
    security.setdefault("fsGroup", NOBODY)
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    _container(frame, spec, env)
    _volumes(frame, spec)
    _override(spec, frame.overrides)
    spec["tolerations"] = [*spec.get("tolerations", []), *_tolerations()]
    _place(frame, spec)
    return pod


def _container(frame: Frame, spec: dict[str, Any], env: Sequence[Mapping[str, Any]]) -> None:
    containers = spec.setdefault("containers", [])
    if not containers:
        containers.append({})
    container = containers[0]
    container.setdefault("name", frame.role)
    settings = frame.settings
    ours = settings.syncer_image if frame.role == SHARD_ROLE else settings.worker_image
    container.setdefault("image", ours)
    container.setdefault("imagePullPolicy", frame.settings.pull_policy)
    if not container.get("command"):
        words = RUNNER.get(frame.role, ("-P", "-m", "atoll_syncer"))
        container["command"] = ["python3", *words]
    needed = [
        *_variables(of_process(run_file=f"{RUN_FOLDER}/{RUN_FILE}", endpoints=frame.endpoints)),
        _from_field(Env.UID, "metadata.uid"),
        {"name": "HOME", "value": "/tmp"},
        *env,
    ]
    theirs = [*container.get("env", []), *_dumped(frame.overrides.env)]
    container["env"] = list({each["name"]: each for each in [*needed, *theirs]}.values())
    own = container.setdefault("securityContext", {})
    own.setdefault("allowPrivilegeEscalation", False)
    own.setdefault("capabilities", {"drop": ["ALL"]})
    if frame.role == SHARD_ROLE:
        own.setdefault("readOnlyRootFilesystem", True)


def _volumes(frame: Frame, spec: dict[str, Any]) -> None:
    _add_volume(spec, "atoll-run", {"configMap": {"name": frame.run_config}}, RUN_FOLDER)
    _add_volume(spec, "atoll-tmp", {"emptyDir": {}}, "/tmp")
    _add_volume(spec, "atoll-shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm")


def _add_volume(spec: dict[str, Any], name: str, source: Mapping[str, Any], path: str) -> None:
    """A volume of ours, unless the user has mounted something there."""
    mounts = spec["containers"][0].setdefault("volumeMounts", [])
    if any(mount.get("mountPath") == path for mount in mounts):
        return
    mounts.append({"name": name, "mountPath": path})
    spec.setdefault("volumes", []).append({"name": name, **source})


def _override(spec: dict[str, Any], overrides: PodOverrides) -> None:
    container = spec["containers"][0]
    if overrides.args:
        container["args"] = list(overrides.args)
    if overrides.resources:
        container["resources"] = copy.deepcopy(overrides.resources)
    if overrides.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **overrides.node_selector}
    if overrides.tolerations:
        spec["tolerations"] = [*spec.get("tolerations", []), *overrides.tolerations]
    if overrides.priority_class_name:
        spec["priorityClassName"] = overrides.priority_class_name


def _tolerations() -> list[dict[str, Any]]:
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": GONE_NODE_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]


def _place(frame: Frame, spec: dict[str, Any]) -> None:
    """The region's nodes (unless the user selects nodes), without the excluded ones."""
    expressions, fields = [], []
    if frame.settings.spans_regions and not spec.get("nodeSelector"):
        label = frame.settings.region_label
        expressions.append({"key": label, "operator": "In", "values": [frame.region]})
    for node in frame.excluded:
        fields.append({"key": HOSTNAME_FIELD, "operator": "NotIn", "values": [node]})
    if not expressions and not fields:
        return
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):  # any of them may match
        if expressions:
            term["matchExpressions"] = [*term.get("matchExpressions", []), *expressions]
        if fields:
            term["matchFields"] = [*term.get("matchFields", []), *fields]


def excluded_nodes(template: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes that a pod or template of ours excludes."""
    affinity = template.get("spec", {}).get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    found = {
        each["values"][0]
        for term in required.get("nodeSelectorTerms", [])
        for each in term.get("matchFields", [])
        if each.get("key") == HOSTNAME_FIELD and each.get("operator") == "NotIn"
    }
    return tuple(sorted(found))


def _variables(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _dumped(env: Sequence[Any]) -> list[dict[str, Any]]:
    return [each.model_dump(by_alias=True, exclude_unset=True) for each in env]
