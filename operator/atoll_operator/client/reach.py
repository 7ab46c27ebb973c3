"""How a person reaches a cluster: with their own kubeconfig and rights, as kubectl does.

Inside a pod, without a kubeconfig, the pod's service account is used.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.config.kube_config import (
    KUBE_CONFIG_DEFAULT_LOCATION,
    KubeConfigLoader,
    KubeConfigMerger,
)

from atoll_protos.errors import AwayError, SpecError

CALL_SECONDS_MAX = 20.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REMEDY = "check --context, and that kubectl get pods works"
ASK = "ask for that right: docs/kubernetes.md, Who may do what, has the roles"
NEITHER = "give the folder of a run, or --context, or set KUBECONFIG"
NO_RIGHT = " cannot "  # in what RBAC says; quotas and webhooks refuse with the same status, 403


@dataclass(frozen=True, slots=True)
class ClusterReach:
    """A client of the cluster's API, and the namespace that is meant."""

    api: Any
    namespace: str


def reach(what: str, namespace: str, context: str) -> ClusterReach:
    """The cluster of a context; both may be empty, as kubectl's options may be left out.

    Raises SpecError without a kubeconfig that can be used; `what` is the name that the person gave,
    if any: a job's, or that of a run folder which is not there.
    """
    settings = client.Configuration()
    try:
        files = KubeConfigMerger(os.environ.get("KUBECONFIG") or KUBE_CONFIG_DEFAULT_LOCATION)
        if files.config is None:
            raise config.ConfigException("there is no kubeconfig")
        loader = KubeConfigLoader(files.config, active_context=context or None)
        loader.load_and_set(settings)
        own = loader.current_context["context"].get("namespace") or "default"
    except config.ConfigException as error:
        try:
            config.load_incluster_config(client_configuration=settings)
            own = NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        except (config.ConfigException, OSError):
            problem = f"no cluster can be asked ({error})"
            if not what:
                remedy = "set KUBECONFIG, or name a context"
                raise SpecError("kubeconfig", problem, remedy) from error
            raise SpecError(what, f"is not a run folder, and {problem}", NEITHER) from error
    settings.retries = False
    return ClusterReach(client.ApiClient(settings), namespace or own)


def message(error: client.ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"


def refused(what: str, error: client.ApiException) -> SpecError:
    """A refusal of the API server in its words, which name the right where one is missing."""
    said = message(error)
    return SpecError(what, f"the cluster refuses: {said}", ASK if NO_RIGHT in said else REMEDY)


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Inside, a refusal of the cluster or its silence is a SpecError about `what`."""
    try:
        yield
    except client.ApiException as error:
        raise refused(what, error) from error
    except urllib3.exceptions.HTTPError as error:
        raise AwayError(what, f"the cluster does not answer ({error})", REMEDY) from error
