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
change of it before their user edits the job (`accepted`).

A learner of several hosts is a StatefulSet of its own: its slot and the place where its hosts meet
are constants of the template, and a pod's number in the set is its host. The pods run the user's
command under `atoll-worker launch`. A host that stands still holds the others, and nobody but the
kubelet of its node can end it: so the launcher answers a liveness probe (PROBE).

A region's podOverrides are merged into the learners' template by the rules and keys of a strategic
merge. Two things differ: `tolerations` and `envFrom` are appended, and an entry with a known key
takes the place of the template's as a whole (a volume has one source), but for init containers. An
empty value changes nothing.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from atoll_operator.api.job.fields import PodOverrides, Template
from atoll_operator.api.job.parsing import is_launched, under_launcher
from atoll_operator.api.job.process_inputs import EVALUATE, TRAIN
from atoll_operator.api.job.spec import Job
from atoll_operator.kube import names
from atoll_operator.kube.names import GROUP, HEALTH_PORT, hosts_set
from atoll_operator.kube.settings import Settings
from atoll_protos.environment import MEETING_PORT, Env, of_hosts, of_learner, of_process, of_shard
from atoll_protos.names import ALIVE, STARTED_PATH, Label
from atoll_protos.network.credentials import AUTHORITY, CERTIFICATE, KEY

Object = dict[str, Any]
Merge = Callable[[Any, Any], Any]

RENAMED = {"containerSecurityContext": "securityContext"}


def _replaced(old: Any, new: Any) -> Any:
    del old
    return new


def _united(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> Object:
    return {**(old or {}), **new}


def _appended(old: list[Any] | None, new: list[Any]) -> list[Any]:
    return [*(old or []), *new]


def _by(key: str) -> Merge:
    """Merge lists in the template's order; an entry with the same key takes the other's place."""

    def merge(old: list[Object] | None, new: list[Object]) -> list[Object]:
        return list({each[key]: each for each in [*(old or []), *new]}.values())

    return merge


def _init_containers(old: list[Object] | None, new: list[Object]) -> list[Object]:
    found = {each["name"]: each for each in old or []}
    for container in new:
        found[container["name"]] = _merged(found.get(container["name"], {}), container, CONTAINER)
    return list(found.values())


# By field, how it is merged; what is not named is replaced.
METADATA: Mapping[str, Merge] = {"labels": _united, "annotations": _united}
CONTAINER: Mapping[str, Merge] = {
    **dict.fromkeys(("image", "command", "args", "resources"), _replaced),
    "env": _by("name"),
    "envFrom": _appended,
    "volumeMounts": _by("mountPath"),
    "containerSecurityContext": _united,
}
POD: Mapping[str, Merge] = {
    "volumes": _by("name"),
    "initContainers": _init_containers,
    "imagePullSecrets": _by("name"),
    "resourceClaims": _by("name"),
    "topologySpreadConstraints": _by("topologyKey"),
    "tolerations": _appended,
    "nodeSelector": _united,
    "affinity": _united,
    "securityContext": _united,
    **dict.fromkeys(
        ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName"), _replaced
    ),
}


def overridden(template: Mapping[str, Any], overrides: PodOverrides) -> Object:
    """Apply what the region changes; the template's first container is the learner's."""
    found: Object = copy.deepcopy(dict(template))
    dumped = overrides.model_dump(by_alias=True, exclude_unset=True)
    given = copy.deepcopy({name: value for name, value in dumped.items() if value})
    if not given:
        return found
    metadata, spec = found.get("metadata", {}), found.get("spec", {})
    containers = spec.get("containers") or [{}]
    parts = [{name: given[name] for name in table if name in given}
             for table in (METADATA, CONTAINER, POD)]  # fmt: skip
    if parts[0]:
        found["metadata"] = _merged(metadata, parts[0], METADATA)
    containers = [_merged(containers[0], parts[1], CONTAINER), *containers[1:]]
    found["spec"] = {**_merged(spec, parts[2], POD), "containers": containers}
    return found


def _merged(old: Object, new: Object, table: Mapping[str, Merge]) -> Object:
    found = dict(old)
    for name, value in new.items():
        field = RENAMED.get(name, name)
        found[field] = table.get(name, _replaced)(found.get(field), value)
    return found


GROUP_READS = 0o440
GONE_NODE_SECONDS = 300  # Kubernetes' own default: a kubelet that is away kills no process so soon
START_PROBE_SECONDS, START_PROBES_MAX = 2, 1800  # a launcher may import torch for an hour
SHARD_PORTS = {
    "grpc": names.SHARD_PORT, "metrics": names.METRICS_PORT, "health": names.HEALTH_PORT
}  # fmt: skip
SHARD_CPU = "100m"  # asked for: without, a shard starves on a node that is busy with learners
RUN_VOLUME = "atoll-run"
POD_INDEX = f"metadata.labels['{names.POD_INDEX_LABEL}']"  # the number of a pod in its StatefulSet
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EXCLUDES = (names.HOSTNAME_FIELD, "NotIn")  # key and operator of a lost node
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
    """Make the learners' pod template; a pod's slot comes from its StatefulSet ordinal."""
    slot = f"$({Env.REGION})-$({Env.ORDINAL})"
    env = variables(of_learner(region=context.region, slot=slot))
    env.insert(1, from_field(Env.ORDINAL, POD_INDEX))  # before the slot, which refers to it
    return completed(job, context, job.spec.learner.template, env)


def evaluator(job: Job, context: RoleContext) -> dict[str, Any]:
    own = job.spec.evaluator
    return completed(job, context, own.template if own else Template(), [])


def shard(job: Job, context: RoleContext, number: int, uid: str, claim: str) -> dict[str, Any]:
    """Make the pod template of one shard, whose state is in a folder named by `uid`.

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
    _probes(container)
    return pod


def _probes(container: dict[str, Any]) -> None:
    """Show a shard Ready while it serves, alive while it waits for its turn or reads its store."""
    health = {"port": names.HEALTH_PORT}  # in plain text: the kubelet has no certificate
    serves = {"grpc": health, "timeoutSeconds": 5}
    lives = {"grpc": {**health, "service": ALIVE}, "timeoutSeconds": 5}
    start = {"periodSeconds": START_PROBE_SECONDS, "failureThreshold": START_PROBES_MAX}
    container.setdefault("startupProbe", {**lives, **start})
    container.setdefault("readinessProbe", {**serves, "periodSeconds": 3})
    container.setdefault("livenessProbe", {**lives, "periodSeconds": 10, "failureThreshold": 9})


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
    """Mount the three files, which root owns and only the pod's fsGroup reads."""
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
    """Keep the template off these nodes; return itself if there are none."""
    if not nodes:
        return template
    found: dict[str, Any] = copy.deepcopy(template)
    key, operator = EXCLUDES
    fields = [{"key": key, "operator": operator, "values": [node]} for node in nodes]
    affinity = found["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault(REQUIRED, {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):
        term["matchFields"] = [*term.get("matchFields", []), *fields]
    return found


def without_exclusions(template: Mapping[str, Any], of_user: Mapping[str, Any]) -> dict[str, Any]:
    """Reverse `excluding`, but for the nodes that the template `of_user` excludes, too."""
    found: dict[str, Any] = copy.deepcopy(dict(template))
    own = [each for term in _terms(of_user) for each in term.get("matchFields") or []]
    terms = _terms(found)
    for term in terms:
        fields = [
            each
            for each in term.pop("matchFields", None) or []
            if each in own or (each.get("key"), each.get("operator")) != EXCLUDES
        ]
        term.update({"matchFields": fields} if fields else {})
    if terms and not any(terms):
        del found["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    return found


def _terms(template: Mapping[str, Any]) -> list[dict[str, Any]]:
    affinity = (template["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    found: list[dict[str, Any]] = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
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
    return {word.partition(".")[0] for text in texts for word in text.split(",")}


def run_config_of(template: Mapping[str, Any]) -> str:
    """Name of the ConfigMap with the run file; empty: the user mounts another file."""
    volumes = template["spec"].get("volumes") or []
    named = [volume["configMap"]["name"] for volume in volumes if volume["name"] == RUN_VOLUME]
    return str(named[0]) if named else ""


def with_run_config(template: dict[str, Any], name: str) -> dict[str, Any]:
    """Mount another run file of the same run; return `template` itself if it has this one."""
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


GPUS: Final = "/gpu"  # the end of a resource's name: nvidia.com/gpu, amd.com/gpu
PROBE: Final = {
    "httpGet": {"path": "/", "port": HEALTH_PORT},
    "timeoutSeconds": 10,  # on a node that has too much to do
    "periodSeconds": 10,
}
START_PROBE: Final = {
    "httpGet": {"path": STARTED_PATH, "port": HEALTH_PORT},
    "initialDelaySeconds": 5,  # a probe that comes before the port is open is told as a Warning
    "timeoutSeconds": 30,  # the answer waits for the import of torch
    "periodSeconds": START_PROBE_SECONDS,
    "failureThreshold": START_PROBES_MAX,
}
STILL_PROBES_MAX: Final = 3  # sooner than ranks lose patience (ATOLL_RANKS_SILENCE_SECONDS)
STOPPED_GRACE_SECONDS: Final = 5  # a process that is stopped does not hear SIGTERM
TOLD_APART_BY: Final = (Label.JOB, Label.JOB_UID, Label.SLOT)  # the hosts of one learner


def hosts_learner(job: Job, context: RoleContext, slot: str) -> dict[str, Any]:
    own = job.spec.learner
    name = hosts_set(job.name, slot)
    given = overridden(
        own.template.model_dump(by_alias=True, exclude_unset=True), context.overrides
    )
    container = ((given.get("spec") or {}).get("containers") or [{}])[0]
    env = [
        from_field(Env.HOST, POD_INDEX),
        *variables(of_learner(region=context.region, slot=slot)),
        *variables(
            of_hosts(
                slot=slot,
                hosts=own.hosts,
                hosts_min=own.hosts_needed,
                processes=gpus(container),
                first_host=f"{name}-0.{name}:{MEETING_PORT}",
                host=None,
            )
        ),
    ]
    pod = completed(job, context, own.template, env)
    container = pod["spec"]["containers"][0]
    container["command"] = under_launcher(container["command"], container.get("args") or ())
    if is_launched([*container["command"], *(container.get("args") or ())]):
        _probe(container)
    ports = container.setdefault("ports", [])
    if all(port.get("containerPort") != MEETING_PORT for port in ports):
        ports.append({"name": "rendezvous", "containerPort": MEETING_PORT})
    if own.topology_key:
        _together(pod, own.topology_key)
    return pod


def of_user(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the user's annotations: Volcano reads the size of its gang at the set."""
    given = template["metadata"].get("annotations") or {}
    return {name: text for name, text in given.items() if not name.startswith(f"{GROUP}/")}


def gpus(container: dict[str, Any]) -> int:
    """Count the processes of a host: one for each GPU of its container, else one."""
    limits = (container.get("resources") or {}).get("limits") or {}
    found = [str(count) for name, count in limits.items() if name.endswith(GPUS)]
    return max(1, sum(int(text) for text in found if text.isascii() and text.isdigit()))


def _probe(container: dict[str, Any]) -> None:
    """Have a host whose launcher stands still started again, unless the user sets probe or port."""
    if "livenessProbe" in container or Env.HEALTH_PORT in (v["name"] for v in container["env"]):
        return
    container["env"].append({"name": Env.HEALTH_PORT, "value": str(HEALTH_PORT)})
    container["livenessProbe"] = {
        **PROBE,
        "failureThreshold": STILL_PROBES_MAX,
        "terminationGracePeriodSeconds": STOPPED_GRACE_SECONDS,
    }
    container.setdefault("startupProbe", copy.deepcopy(START_PROBE))


def _together(pod: dict[str, Any], topology_key: str) -> None:
    """Require nodes with one value of the label, besides what the user requires."""
    labels = pod["metadata"]["labels"]
    match = {name: labels[name] for name in TOLD_APART_BY if name in labels}
    term = {"topologyKey": topology_key, "labelSelector": {"matchLabels": match}}
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})
    affinity[REQUIRED] = [*affinity.get(REQUIRED, []), term]
