"""The pod template of a learner of several hosts, which is a StatefulSet of its own.

Its slot and the place where its hosts meet are constants of the template, and a pod's number in the
set is its host. The pods run the user's command under `atoll-worker launch`. A host that stands
still holds the others, and nobody but the kubelet of its node can end it: so the launcher answers a
liveness probe (PROBE), also while the API server is away.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from atoll_operator.api.job.launching import is_launched, under_launcher
from atoll_operator.api.job.spec import Job
from atoll_operator.kube.names import GROUP, HEALTH_PORT, hosts_set
from atoll_operator.kube.plan.workloads import pods
from atoll_operator.kube.plan.workloads.overrides import overridden
from atoll_protos.environment import Env, of_learner
from atoll_protos.names import STARTED_PATH, Label
from atoll_protos.torchrun import MEETING_PORT, of_hosts

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
    "periodSeconds": pods.START_PROBE_SECONDS,
    "failureThreshold": pods.START_PROBES_MAX,
}
STILL_PROBES_MAX: Final = 3  # sooner than ranks lose patience (ATOLL_RANKS_SILENCE_SECONDS)
STOPPED_GRACE_SECONDS: Final = 5  # a process that is stopped does not hear SIGTERM
TOLD_APART_BY: Final = (Label.JOB, Label.JOB_UID, Label.SLOT)  # the hosts of one learner


def learner(job: Job, context: pods.RoleContext, slot: str) -> dict[str, Any]:
    own = job.spec.learner
    name = hosts_set(job.name, slot)
    given = overridden(
        own.template.model_dump(by_alias=True, exclude_unset=True), context.overrides
    )
    container = ((given.get("spec") or {}).get("containers") or [{}])[0]
    env = [
        pods.from_field(Env.HOST, pods.POD_INDEX),
        *pods.variables(of_learner(region=context.region, slot=slot)),
        *pods.variables(
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
    pod = pods.completed(job, context, own.template, env)
    container = pod["spec"]["containers"][0]
    container["command"] = under_launcher(container["command"], container.get("args") or ())
    if is_launched([*container["command"], *(container.get("args") or ())]):
        _probe(container)
    ports = container.setdefault("ports", [])
    if all(each.get("containerPort") != MEETING_PORT for each in ports):
        ports.append({"name": "rendezvous", "containerPort": MEETING_PORT})
    if own.topology_key:
        _together(pod, own.topology_key)
    return pod


def of_user(template: Mapping[str, Any]) -> dict[str, str]:
    """The user's annotations of a template: Volcano reads the size of its gang at the set."""
    given = template["metadata"].get("annotations") or {}
    return {name: text for name, text in given.items() if not name.startswith(f"{GROUP}/")}


def gpus(container: dict[str, Any]) -> int:
    """The processes of a host: one for each GPU of its container, else one."""
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
    affinity[pods.REQUIRED] = [*affinity.get(pods.REQUIRED, []), term]
