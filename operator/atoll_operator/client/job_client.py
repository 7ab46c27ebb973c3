"""Jobs of a cluster with their pods, as a person's own kubeconfig shows them.

Inside a pod, without a kubeconfig, the pod's service account is used. Addresses of shards mean
something only inside the cluster, so they are read in a shard's pod, and what was read comes back
through `kubectl exec`.
"""

import base64
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import urllib3
from kubernetes import client, config
from kubernetes.config.kube_config import (
    KUBE_CONFIG_DEFAULT_LOCATION,
    KubeConfigLoader,
    KubeConfigMerger,
)

from atoll_operator.api.status.job_status import Status
from atoll_operator.kube.names import (
    GROUP,
    LEARNER_ROLE,
    PLURAL,
    SHARD_ROLE,
    VERSION,
    Annotation,
)
from atoll_protos.environment import Env
from atoll_protos.errors import AwayError, SpecError
from atoll_protos.names import Label

CALL_SECONDS_MAX = 20.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REMEDY = "check --context, and that kubectl get pods works"
ASK = "ask for that right: docs/kubernetes.md, Who may do what, has the roles"
NEITHER = "give the folder of a run, or --context, or set KUBECONFIG"
ELSEWHERE = (
    "see kubectl get dtj --all-namespaces, in the cluster where its syncer runs; the operator there"
    " makes its authority when it starts the job"
)
NO_RIGHT = " cannot "  # in what RBAC says; quotas and webhooks refuse with the same status, 403
NOT_FOUND, BUSY, SERVER_ERROR = 404, 429, 500
MERGE_PATCH: Final = "application/merge-patch+json"
PAGE = 500  # jobs in one answer


class JobClient:
    """Jobs in one namespace of one cluster; left out, both are those that kubectl would use.

    A call of the API may take `call_seconds_max`. Raises SpecError without a kubeconfig that can be
    used, and in each method where the cluster refuses or does not answer (AwayError). `what` is the
    name that the person gave, if any: a job's, or that of a run folder which is not there.
    """

    def __init__(
        self,
        namespace: str = "",
        context: str = "",
        *,
        what: str = "",
        call_seconds_max: float = CALL_SECONDS_MAX,
    ) -> None:
        api, default = _connect(what, context)
        self.call_seconds_max = call_seconds_max
        self.namespace = namespace or default
        self._objects, self._core = client.CustomObjectsApi(api), client.CoreV1Api(api)

    def get(self, name: str) -> dict[str, Any]:
        """Return the whole object, as a manifest's YAML has it, with its status."""
        found: dict[str, Any] = self._jobs(name, self._objects.get_namespaced_custom_object, name)
        return found

    def status(self, name: str) -> Status:
        return Status.read(self.get(name).get("status"))

    def names(self) -> list[str]:
        """Return those of all jobs of the namespace, sorted."""
        names: list[str] = []
        more = ""
        while True:
            page = self._jobs(
                "jobs", self._objects.list_namespaced_custom_object, limit=PAGE, _continue=more
            )
            names += (raw["metadata"]["name"] for raw in page["items"])
            more = page["metadata"].get("continue") or ""
            if not more:
                return sorted(names)

    def annotate(self, name: str, annotation: str, value: str, version: str | None = None) -> None:
        """Write an annotation; with a version only where the job still has it, else raise."""
        metadata: dict[str, Any] = {"annotations": {annotation: value}}
        if version is not None:
            metadata["resourceVersion"] = version
        change = self._objects.patch_namespaced_custom_object
        self._jobs(name, change, name, {"metadata": metadata}, _content_type=MERGE_PATCH)

    def ask_checkpoint(self, name: str, step: int) -> None:
        """Ask for a checkpoint of this step, or of a later one, of a job that trains.

        Training does not wait. `status.checkpoint` names it when it is whole.
        """
        self.annotate(name, Annotation.CHECKPOINT, str(step))

    def pods(self, job: str, role: str = "") -> list[Any]:
        """Return the job's pods, or those of a role."""
        selector = f"{Label.JOB}={job}" + (f",{Label.ROLE}={role}" if role else "")
        pods = self._core.list_namespaced_pod
        return list(self._ask(job, pods, self.namespace, label_selector=selector).items)

    def secret(self, job: str, name: str) -> dict[str, bytes]:
        """Return the files of a Secret of the job."""
        found = self._ask(job, self._core.read_namespaced_secret, name, self.namespace)
        return {key: base64.b64decode(value) for key, value in (found.data or {}).items()}

    def _jobs(self, name: str, call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        return self._ask(name, call, GROUP, VERSION, self.namespace, PLURAL, *words, **options)

    def _ask(self, what: str, call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        """Make one call of the API about the job `what`; its errors are a person's words."""
        try:
            return call(*words, **options, _request_timeout=self.call_seconds_max)
        except client.ApiException as error:
            raise _refused(what, self.namespace, error) from error
        except urllib3.exceptions.HTTPError as error:
            raise AwayError(what, f"the cluster does not answer ({error})", REMEDY) from error


def _connect(what: str, context: str) -> tuple[Any, str]:
    """Return a client of a context's API, and the namespace of the context."""
    settings = client.Configuration()
    try:
        files = KubeConfigMerger(os.environ.get("KUBECONFIG") or KUBE_CONFIG_DEFAULT_LOCATION)
        if files.config is None:
            raise config.ConfigException("there is no kubeconfig")
        loader = KubeConfigLoader(files.config, active_context=context or None)
        loader.load_and_set(settings)
        namespace = loader.current_context["context"].get("namespace") or "default"
    except config.ConfigException as error:
        try:
            config.load_incluster_config(client_configuration=settings)
            namespace = NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        except (config.ConfigException, OSError):
            problem = f"no cluster can be asked ({error})"
            if not what:
                remedy = "set KUBECONFIG, or name a context"
                raise SpecError("kubeconfig", problem, remedy) from error
            raise SpecError(what, f"is not a run folder, and {problem}", NEITHER) from error
    settings.retries = False
    return client.ApiClient(settings), namespace


def _refused(what: str, namespace: str, error: client.ApiException) -> SpecError:
    """Return a refusal in the API server's words, which name the right where one is missing."""
    try:
        text = str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        text = f"{error.status} {error.reason}"
    status = error.status or 0
    if status == NOT_FOUND:
        return SpecError(what, f"{text} in the namespace {namespace}", ELSEWHERE)
    if status >= SERVER_ERROR or status == BUSY:
        return AwayError(what, f"the cluster answers {status}: {text}", "try again")
    return SpecError(what, f"the cluster refuses: {text}", ASK if NO_RIGHT in text else REMEDY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A pod from which the shards of a job are reachable."""

    namespace: str
    pod: str
    container: str

    def command(self, kubectl: str, context: str) -> list[str]:
        """Return the words that run a Python module in the shard's pod: append its arguments."""
        chosen = ["--context", context] if context else []
        where = ["-n", self.namespace, "exec", self.pod, "-c", self.container]
        return [kubectl, *chosen, *where, "--", "python3", "-P", "-m"]


def shards_of(job: str, namespace: str, context: str) -> Shards:
    """Return a pod that runs: of shard 0 before others, and of its pods the one that serves.

    Raises SpecError for a job without shards, and for a cluster that does not answer.
    """
    jobs = JobClient(namespace, context, what=job)
    pods = jobs.pods(job, SHARD_ROLE)
    if not pods:
        problem = f"has no shards in the namespace {jobs.namespace}"
        remedy = "a job that is over has none: its status.exportURL says where the model is"
        if jobs.pods(job, LEARNER_ROLE):
            remedy = "its learners here dial a syncer in another cluster: give its --context"
        raise SpecError(job, problem, remedy)

    def order(pod: Any) -> tuple[bool, str, bool, str]:
        running = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        shard = (pod.metadata.labels or {}).get(Label.SHARD, "")
        return not running, shard, not _is_ready(pod), str(pod.metadata.name)

    pod = min(pods, key=order)
    for container in pod.spec.containers:
        if any(variable.name == Env.ENDPOINTS for variable in container.env or ()):
            return Shards(
                namespace=jobs.namespace, pod=pod.metadata.name, container=str(container.name)
            )
    remedy = "use the atoll of the operator's version"
    raise SpecError(pod.metadata.name, f"has no {Env.ENDPOINTS}", remedy)


def nodes_of(job: str, namespace: str, context: str) -> Mapping[str, str]:
    """Return nodes by process: of several hosts the first and how many more. Raises SpecError."""
    learners: dict[str, dict[str, None]] = {}
    shards: dict[str, str] = {}
    pods = JobClient(namespace, context, what=job).pods(job)
    for pod in sorted(pods, key=lambda pod: (not _is_ready(pod), pod.metadata.name)):
        labels, node = pod.metadata.labels, pod.spec.node_name
        role = labels.get(Label.ROLE, "")
        if node and role == SHARD_ROLE:
            shards.setdefault(f"shard-{labels.get(Label.SHARD, '')}", node)
        elif node:
            alone = pod.metadata.name.removeprefix(f"{job}-") if role == LEARNER_ROLE else role
            learners.setdefault(labels.get(Label.SLOT) or alone, {})[node] = None
    return {
        name: next(iter(nodes)) + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
        for name, nodes in learners.items()
    } | shards


def _is_ready(pod: Any) -> bool:
    conditions = pod.status.conditions or ()
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)
