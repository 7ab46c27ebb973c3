"""Pod templates: the user's, completed with what every pod of a role needs.

    kept if the user sets it   image, command, pull policy, service account, security contexts,
                               grace period, ports, probes, and volumes at our mount paths
    merged, the user's last    environment variables: a variable of the template replaces one of
                               the same name
    added to the user's        labels, annotations, tolerations, node affinity, node selector
    always set                 no service account token, no service links

The first container of the template runs Atoll's process; a template without containers gets one.
Every pod is admitted under the "restricted" pod security standard. Under TLS Atoll's container, and
no sidecar, has its certificate in TLS_FOLDER. `/tmp` and `/dev/shm` are folders of the pod.

A pod is bound to its region by node affinity where the cluster spans regions, besides what the user
requires, unless the placement is Anywhere. Lost nodes are excluded by `matchFields` on the node's
name, which every node has, rather than by its hostname label, which may differ from the name.

Whatever this module writes goes into the hash of the role's template. Running pods do not see a
change of it before their user edits the job (`rendering`).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll_operator.api.job.pod_fields import PodOverrides, Template
from atoll_operator.api.job.process_inputs import EVALUATE, TRAIN
from atoll_operator.api.job.spec import Job
from atoll_operator.kube import names
from atoll_operator.kube.plan.workloads.overrides import overridden
from atoll_operator.kube.settings import Settings
from atoll_protos.environment import Env, of_learner, of_process, of_shard
from atoll_protos.names import ALIVE, Label
from atoll_protos.network.credentials import AUTHORITY, CERTIFICATE, KEY

GROUP_READS = 0o440
GONE_NODE_SECONDS = 300  # Kubernetes' own default: a kubelet that is away kills no process so soon
START_PROBE_SECONDS, START_PROBES_MAX = 2, 1800  # a launcher may import torch for an hour
SHARD_PORTS = {
    "grpc": names.SHARD_PORT, "metrics": names.METRICS_PORT, "health": names.HEALTH_PORT
}  # fmt: skip
SHARD_CPU = "100m"  # asked for: without, a shard starves on a node that is busy with learners
APART = {"kubernetes.io/hostname": 100, "topology.kubernetes.io/zone": 50}  # weights
RUN_VOLUME = "atoll-run"
POD_INDEX = f"metadata.labels['{names.POD_INDEX_LABEL}']"  # the number of a pod in its StatefulSet
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
RUNNER = {names.LEARNER_ROLE: TRAIN, names.EVALUATOR_ROLE: EVALUATE}
RECOMMENDED = "app.kubernetes.io/"  # labels that nothing here selects by: the user's stay


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """What the pods of one role get in addition to the user's template."""

    role: str
    labels: Mapping[str, str]
    region: str
    run_config: str  # name of the ConfigMap with the run file
    settings: Settings
    endpoints: str  # host:port of every shard, comma-separated
    any_node: bool = False  # the region's label is not asked for
    certificate: str = ""  # name of the Secret with the role's certificate; empty: plain text
    overrides: PodOverrides = field(default_factory=PodOverrides)


def learner(job: Job, context: RoleContext) -> dict[str, Any]:
    """The pod template of a region's learners; a pod's slot comes from its StatefulSet ordinal."""
    slot = f"$({Env.REGION})-$({Env.ORDINAL})"
    env = variables(of_learner(region=context.region, slot=slot))
    env.insert(1, from_field(Env.ORDINAL, POD_INDEX))  # before the slot, which refers to it
    return completed(job, context, job.spec.learner.template, env)


def evaluator(job: Job, context: RoleContext) -> dict[str, Any]:
    own = job.spec.evaluator
    return completed(job, context, own.template if own else Template(), [])


def shard(job: Job, context: RoleContext, number: int, uid: str, claim: str) -> dict[str, Any]:
    """The pod template of one shard, whose state is in a folder named by `uid`.

    So a claim that outlives its job (`reclaim: Retain`), or a bucket, gives a later one of its name
    no old state.
    """
    storage, folder = job.spec.syncer.storage, f"{names.DATA_FOLDER}/{uid}"
    bucket = storage.folder_of(uid)
    export = job.spec.export_url.removeprefix("file://")
    env = of_shard(
        shard=number,
        listen=f"0.0.0.0:{names.SHARD_PORT}",
        slots_file=f"{names.SLOTS_FOLDER}/{names.SLOTS_FILE}",
        length_file=f"{names.SLOTS_FOLDER}/{names.LENGTH_FILE}",
        store=f"{bucket}/{number}" if bucket else f"{folder}/commits",
        tape=f"{folder}/tape.jsonl",
        export=export or f"{bucket or folder}/{names.EXPORT_FOLDER}",
        metrics_port=names.METRICS_PORT,
    )
    env |= {Env.STORE_ENDPOINT: storage.endpoint} if storage.endpoint else {}
    env |= {Env.HEALTH_PORT: str(names.HEALTH_PORT)}
    env |= {Env.STANDBY: "1"} if job.spec.syncer.standby else {}
    pod = completed(job, context, job.spec.syncer.template, variables(env))
    volume = {"persistentVolumeClaim": {"claimName": claim}}
    source = volume if storage.has_claims else {"emptyDir": {}}
    _add_volume(pod["spec"], "atoll-data", source, names.DATA_FOLDER)
    slots = {"configMap": {"name": names.slots_name(job.name)}}
    _add_volume(pod["spec"], "atoll-slots", slots, names.SLOTS_FOLDER)
    container = pod["spec"]["containers"][0]
    if storage.secret:  # the user's own last: of two that have a key, the last one counts
        secret = {"secretRef": {"name": storage.secret}}
        container["envFrom"] = [secret, *container.get("envFrom", [])]
    container.setdefault(
        "ports", [{"name": name, "containerPort": port} for name, port in SHARD_PORTS.items()]
    )
    container.setdefault("resources", {"requests": {"cpu": SHARD_CPU}})
    if job.spec.syncer.standby:
        _apart(pod)
    _probes(container, standby=job.spec.syncer.standby)
    return pod


def _probes(container: dict[str, Any], *, standby: bool) -> None:
    """A shard is Ready while it serves; one that waits for its turn, or reads its store, lives.

    Other clusters find the process that serves by its readiness, so it is looked at often where
    another one can take over.
    """
    health = {"port": names.HEALTH_PORT}  # in plain text: the kubelet has no certificate
    serves = {"grpc": health, "timeoutSeconds": 5}
    lives = {"grpc": {**health, "service": ALIVE}, "timeoutSeconds": 5}
    start = {"periodSeconds": START_PROBE_SECONDS, "failureThreshold": START_PROBES_MAX}
    container.setdefault("startupProbe", {**lives, **start})
    container.setdefault("readinessProbe", {**serves, "periodSeconds": 1 if standby else 3})
    container.setdefault("livenessProbe", {**lives, "periodSeconds": 10, "failureThreshold": 9})


def _apart(pod: dict[str, Any]) -> None:
    """Prefer another node, and another zone, than those of the shard's other process.

    Its own former pod, which may still be ending, keeps it from no node.
    """
    labels = pod["metadata"]["labels"]
    other = "DoesNotExist" if Label.PROCESS in labels else "Exists"
    selector = {
        "matchLabels": {name: labels[name] for name in (Label.JOB_UID, Label.ROLE, Label.SHARD)},
        "matchExpressions": [{"key": Label.PROCESS, "operator": other}],
    }
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("podAntiAffinity", {})
    terms = [
        {
            "weight": weight,
            "podAffinityTerm": {"topologyKey": key, "labelSelector": selector},
        }
        for key, weight in APART.items()
    ]
    affinity[PREFERRED] = [*affinity.get(PREFERRED, []), *terms]


def account_of(template: Template) -> str:
    return str((template.spec.model_extra or {}).get("serviceAccountName") or "")


def container_names(job: Job) -> dict[str, str]:
    """By role, the name of the container that runs Atoll: the template's first one."""
    own = job.spec.evaluator
    templates = {
        names.LEARNER_ROLE: job.spec.learner.template,
        names.SHARD_ROLE: job.spec.syncer.template,
        names.EVALUATOR_ROLE: own.template if own else Template(),
    }
    return {
        role: str((template.container.model_extra or {}).get("name") or role)
        for role, template in templates.items()
    }


def completed(
    job: Job, context: RoleContext, template: Template, env: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    given = template.model_dump(by_alias=True, exclude_unset=True)
    pod = overridden(given, context.overrides)
    metadata = pod.setdefault("metadata", {})
    ours = {name: v for name, v in context.labels.items() if not name.startswith(RECOMMENDED)}
    metadata["labels"] = {**context.labels, **metadata.get("labels", {}), **ours}
    metadata.setdefault("annotations", {})
    if context.role == names.LEARNER_ROLE and names.QUEUE_LABEL in metadata["labels"]:
        metadata["annotations"].setdefault(names.KUEUE_MAY_END, "true")  # its slot is fenced
    spec = pod.setdefault("spec", {})
    spec.setdefault("serviceAccountName", names.account_name(job.name, context.role))
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    security = spec.setdefault("securityContext", {})
    security.setdefault("runAsNonRoot", True)
    user = context.settings.pod_user
    for name in ("runAsUser", "runAsGroup", "fsGroup") if user is not None else ():
        security.setdefault(name, user)
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if context.role == names.LEARNER_ROLE:
        gates = spec.get("readinessGates", [])
        spec["readinessGates"] = [*gates, {"conditionType": names.TRAINING_GATE}]
    _container(context, spec, env)
    _volumes(context, spec)
    spec["tolerations"] = [*spec.get("tolerations", []), *_tolerations()]
    _place(context, spec)
    return pod


# The functions below change `spec`, which `completed` has copied from the user's template.


def _container(
    context: RoleContext, spec: dict[str, Any], env: Sequence[Mapping[str, Any]]
) -> None:
    containers = spec.setdefault("containers", [])
    if not containers:
        containers.append({})
    container = containers[0]
    container.setdefault("name", context.role)
    settings = context.settings
    image = settings.syncer_image if context.role == names.SHARD_ROLE else settings.worker_image
    container.setdefault("image", image)
    container.setdefault("imagePullPolicy", context.settings.pull_policy)
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")  # its last words
    if not container.get("command"):
        words = RUNNER.get(context.role, ("-P", "-m", "atoll_syncer"))
        container["command"] = ["python3", *words]
    needed = [
        *variables(
            of_process(run_file=f"{names.RUN_FOLDER}/{names.RUN_FILE}", endpoints=context.endpoints)
        ),
        *variables({Env.TLS_DIR: names.TLS_FOLDER} if context.certificate else {}),
        from_field(Env.UID, "metadata.uid"),
        {"name": "HOME", "value": "/tmp"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},  # a log is complete when the process ends
        {"name": "PYTHONFAULTHANDLER", "value": "1"},  # and says where a fault has ended it
        *env,
    ]
    every = [*needed, *container.get("env", [])]
    container["env"] = list({each["name"]: each for each in every}.values())
    own = container.setdefault("securityContext", {})
    own.setdefault("allowPrivilegeEscalation", False)
    own.setdefault("capabilities", {"drop": ["ALL"]})
    if context.role == names.SHARD_ROLE:
        own.setdefault("readOnlyRootFilesystem", True)


def _volumes(context: RoleContext, spec: dict[str, Any]) -> None:
    _add_volume(spec, RUN_VOLUME, {"configMap": {"name": context.run_config}}, names.RUN_FOLDER)
    _add_volume(spec, "atoll-tmp", {"emptyDir": {}}, "/tmp")
    _add_volume(spec, "atoll-shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm")
    if context.certificate:
        _add_volume(spec, names.TLS_VOLUME, _certificate(context.certificate), names.TLS_FOLDER)


def _certificate(secret: str) -> dict[str, Any]:
    """The three files, which root owns and the pod's fsGroup reads, and nobody else."""
    items = [{"key": name, "path": name} for name in (CERTIFICATE, KEY, AUTHORITY)]
    return {"secret": {"secretName": secret, "defaultMode": GROUP_READS, "items": items}}


def _add_volume(spec: dict[str, Any], name: str, source: Mapping[str, Any], path: str) -> None:
    """Add a volume and its mount, unless the user has mounted something at that path."""
    mounts = spec["containers"][0].setdefault("volumeMounts", [])
    if any(mount.get("mountPath") == path for mount in mounts):
        return
    mounts.append({"name": name, "mountPath": path})
    spec.setdefault("volumes", []).append({"name": name, **source})


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


def _place(context: RoleContext, spec: dict[str, Any]) -> None:
    """Require the region's nodes, besides what the user requires."""
    if not context.settings.spans_regions or context.any_node:
        return
    label = context.settings.region_label
    expression = {"key": label, "operator": "In", "values": [context.region]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault(REQUIRED, {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):  # a node needs to match one of them
        term["matchExpressions"] = [*term.get("matchExpressions", []), expression]


# The functions below work on templates that are rendered already, by this version or another.


def excluding(template: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """The template, kept off these nodes; itself, if there are none."""
    if not nodes:
        return template
    found: dict[str, Any] = copy.deepcopy(template)
    fields = [
        {"key": names.HOSTNAME_FIELD, "operator": "NotIn", "values": [node]} for node in nodes
    ]
    affinity = found["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault(REQUIRED, {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        term["matchFields"] = [*term.get("matchFields", []), *fields]
    return found


def without_exclusions(template: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `excluding`, whichever nodes a template excludes."""
    found: dict[str, Any] = copy.deepcopy(dict(template))
    affinity = found["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(REQUIRED)
    if not required:
        return found
    for term in required["nodeSelectorTerms"]:
        fields = [
            each
            for each in term.pop("matchFields", None) or []
            if (each.get("key"), each.get("operator")) != (names.HOSTNAME_FIELD, "NotIn")
        ]
        term.update({"matchFields": fields} if fields else {})
    if not any(required["nodeSelectorTerms"]):
        del affinity["nodeAffinity"][REQUIRED]
    return found


def speaks_tls(template: Mapping[str, Any]) -> bool:
    containers = template["spec"].get("containers") or []
    return any(v.get("name") == Env.TLS_DIR for c in containers for v in c.get("env") or [])


def dialled(spec: Mapping[str, Any]) -> set[str]:
    """Names of the Services in the namespace by which a pod's containers dial the shards."""
    texts = [
        variable.get("value") or ""
        for container in spec.get("containers") or []
        for variable in container.get("env") or []
        if variable.get("name") == Env.ENDPOINTS
    ]
    return {each.partition(".")[0] for text in texts for each in text.split(",")}


def run_config_of(template: Mapping[str, Any]) -> str:
    """Name of the ConfigMap with the run file; empty: the user mounts another file."""
    volumes = template["spec"].get("volumes") or []
    named = [each["configMap"]["name"] for each in volumes if each["name"] == RUN_VOLUME]
    return str(named[0]) if named else ""


def with_run_config(template: dict[str, Any], name: str) -> dict[str, Any]:
    """The template with another run file of the same run; itself, if it has this one."""
    if run_config_of(template) in ("", name):
        return template
    found: dict[str, Any] = copy.deepcopy(template)
    for volume in found["spec"].get("volumes") or []:
        if volume["name"] == RUN_VOLUME:
            volume["configMap"]["name"] = name
    return found


def variables(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
