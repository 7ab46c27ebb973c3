"""Jobs of a cluster as `atoll export` and `checkpoint` read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import urllib3
from kubernetes import client

from atoll_operator.api.status.job_status import Status
from atoll_operator.client.reach import CALL_SECONDS_MAX, REMEDY, message, reach, refused
from atoll_operator.kube.names import GROUP, PLURAL, VERSION, Annotation
from atoll_protos.errors import AwayError, SpecError

NOT_FOUND, BUSY, SERVER_ERROR = 404, 429, 500
MERGE_PATCH: Final = "application/merge-patch+json"
PAGE = 500  # jobs in one answer


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job as the cluster has it now.

    `manifest` is the whole object, as a manifest's YAML has it; `status` is what is seen of the
    job, with the fields of docs/spec.md in snake_case.
    """

    manifest: Mapping[str, Any]
    status: Status

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> "TrainingJob":
        """From an object of the API server."""
        return cls(raw, Status.read(raw.get("status")))

    def is_true(self, kind: str) -> bool:
        """Whether the condition of this type is True."""
        return self.status.true_condition(kind) is not None


class JobClient:
    """Jobs in one namespace of one cluster; left out, both are those that kubectl would use.

    A call of the API may take `call_seconds_max`. Raises SpecError without a kubeconfig that can be
    used, and in each method where the cluster refuses or does not answer (AwayError).
    """

    def __init__(
        self, namespace: str = "", context: str = "", *, call_seconds_max: float = CALL_SECONDS_MAX
    ) -> None:
        cluster = reach("", namespace, context)
        self.call_seconds_max = call_seconds_max
        self.namespace = cluster.namespace
        self._objects = client.CustomObjectsApi(cluster.api)

    def get(self, name: str) -> TrainingJob:
        return TrainingJob.read(self._ask(name, self._objects.get_namespaced_custom_object, name))

    def names(self) -> list[str]:
        """Of all jobs of the namespace, sorted."""
        names: list[str] = []
        more = ""
        while True:
            page = self._ask(
                "jobs", self._objects.list_namespaced_custom_object, limit=PAGE, _continue=more
            )
            names += (raw["metadata"]["name"] for raw in page["items"])
            more = page["metadata"].get("continue") or ""
            if not more:
                return sorted(names)

    def ask_checkpoint(self, name: str, step: int) -> None:
        """Ask for a checkpoint of this step, or of a later one, of a job that trains.

        Training does not wait. `status.checkpoint` names it when it is whole.
        """
        patch = {"metadata": {"annotations": {Annotation.CHECKPOINT: str(step)}}}
        change = self._objects.patch_namespaced_custom_object
        self._ask(name, change, name, patch, _content_type=MERGE_PATCH)

    def _ask(self, name: str, call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        """One call of the API about the job `name`; its errors in a person's words."""
        where = (GROUP, VERSION, self.namespace, PLURAL)
        try:
            return call(*where, *words, **options, _request_timeout=self.call_seconds_max)
        except client.ApiException as error:
            raise _refused(name, self.namespace, error) from error
        except urllib3.exceptions.HTTPError as error:
            problem = f"the cluster does not answer ({error})"
            raise AwayError(name, problem, REMEDY) from error


def _refused(name: str, namespace: str, error: client.ApiException) -> SpecError:
    text = message(error)
    if error.status == NOT_FOUND:
        problem = f"the namespace {namespace} has no such job ({text})"
        return SpecError(name, problem, "see kubectl get dtj --all-namespaces")
    if error.status is not None and (error.status >= SERVER_ERROR or error.status == BUSY):
        return AwayError(name, f"the cluster answers {error.status}: {text}", "try again")
    return refused(name, error)
