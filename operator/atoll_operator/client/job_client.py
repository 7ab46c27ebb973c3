"""Jobs of a cluster from Python: create, get, list, wait_for, logs, suspend, resume, delete.

    from atoll_operator.client import JobClient

    jobs = JobClient(namespace="team-a")
    jobs.create(Path("job.yaml"))
    jobs.wait_for("three-regions", "Complete", timeout_seconds=24 * 3600)

It needs `pip install "atoll[operator]"` and no torch, and acts with the rights of your kubeconfig,
or inside a pod with those of its service account. What fails is a SpecError: one line with the
field or job, what is wrong with it, and what to do. Its subclasses tell what a program may want to
tell apart: NotFoundError, FailedError and WaitTimeoutError.
"""

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import urllib3
from kubernetes import client

from atoll_operator.api.job import parsing, unsupported
from atoll_operator.api.status.job_status import Condition, Status
from atoll_operator.api.status.reasons import REMEDIES, TYPES
from atoll_operator.client.pod_logs import Line, Logs
from atoll_operator.client.reach import CALL_SECONDS_MAX, REMEDY, message, reach, refused
from atoll_operator.kube.names import GROUP, PLURAL, VERSION, Annotation
from atoll_protos.errors import AwayError, SpecError

__all__ = ["FailedError", "JobClient", "NotFoundError", "TrainingJob", "WaitTimeoutError"]

NOT_FOUND, CONFLICT, SERVER_ERROR = 404, 409, 500
BUSY = 429
MERGE_PATCH: Final = "application/merge-patch+json"
PAGE = 500  # jobs in one answer
LOOK_SECONDS: Final = 2.0  # a watch needs a right that who may get one job need not have


class NotFoundError(SpecError):
    """There is no such job in the namespace."""


class FailedError(SpecError):
    """The job will not become what was waited for; `reason` is that of its condition."""

    def __init__(self, field: str, problem: str, remedy: str, reason: str) -> None:
        super().__init__(field, problem, remedy)
        self.reason = reason


class WaitTimeoutError(SpecError):
    """The job has not become what was waited for in the time that was given."""


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

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])

    @property
    def state(self) -> str:
        """The column State of `kubectl get dtj`; empty before the operator has looked at it."""
        ready = self.condition("Ready")
        return ready.reason if ready else ""

    @property
    def is_current(self) -> bool:
        """Whether the status describes the manifest as it is now."""
        generation = int(self.manifest["metadata"].get("generation", 0))
        return (self.status.observed_generation or 0) >= generation

    def condition(self, kind: str) -> Condition | None:
        """The condition of a type; None before the operator has looked at the job."""
        return next((each for each in self.status.conditions or [] if each.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition of this type is True."""
        return self.status.true_condition(kind) is not None


class JobClient:
    """Jobs in one namespace of one cluster; left out, both are those that kubectl would use.

    A call of the API may take `call_seconds_max`. Raises SpecError without a kubeconfig that can be
    used.
    """

    def __init__(
        self, namespace: str = "", context: str = "", *, call_seconds_max: float = CALL_SECONDS_MAX
    ) -> None:
        found = reach("", namespace, context)
        self.call_seconds_max = call_seconds_max
        self.namespace = found.namespace
        self._core = client.CoreV1Api(found.api)
        self._objects = client.CustomObjectsApi(found.api)

    def create(self, document: Mapping[str, Any] | str | Path) -> TrainingJob:
        """Create a job from a manifest: as a mapping, as YAML, or in a file.

        It is checked before it is sent. Raises SpecError, also where a job has the name.
        """
        checked = _checked(document)
        name = str(checked["metadata"]["name"])
        space = str(checked["metadata"].get("namespace") or self.namespace)
        if space != self.namespace:
            problem = f"is {space}, and this client acts in {self.namespace}"
            raise SpecError("metadata.namespace", problem, f'use JobClient(namespace="{space}")')
        return TrainingJob.read(
            self._ask(name, self._objects.create_namespaced_custom_object, checked)
        )

    def get(self, name: str) -> TrainingJob:
        """The job of this name. Raises NotFoundError, and SpecError where the cluster refuses."""
        return TrainingJob.read(self._ask(name, self._objects.get_namespaced_custom_object, name))

    def list(self) -> list[TrainingJob]:
        """All jobs of the namespace, by name. Raises SpecError."""
        found: list[TrainingJob] = []
        more = ""
        while True:
            page = self._ask(
                "jobs", self._objects.list_namespaced_custom_object, limit=PAGE, _continue=more
            )
            found += (TrainingJob.read(each) for each in page["items"])
            more = page["metadata"].get("continue") or ""
            if not more:
                return sorted(found, key=lambda job: job.name)

    def wait_for(
        self,
        name: str,
        condition: str | Callable[[TrainingJob], bool] = "Complete",
        *,
        timeout_seconds: float = 600.0,
        look_seconds: float = LOOK_SECONDS,
    ) -> TrainingJob:
        """Wait until a condition of the job is True, or a function of the job says so.

        Raises FailedError as soon as the job cannot become that: it has failed, its manifest is
        not accepted, or it is Complete; NotFoundError if there is no such job any more; and
        WaitTimeoutError. An API server that does not answer is asked again until then.
        """
        if isinstance(condition, str) and condition not in TYPES:
            raise SpecError("condition", f"there is no {condition}", f"use {', '.join(TYPES)}")
        wanted = condition if isinstance(condition, str) else "what was asked for"
        ends, said = time.monotonic() + timeout_seconds, "the cluster has not answered"
        while True:
            try:
                job = self.get(name)
            except AwayError as error:
                said = error.problem
            else:
                if is_there(job, condition):
                    return job
                said = f"it is {job.state or 'not looked at by an operator'}"
            left = ends - time.monotonic()
            if left <= 0:
                problem = f"is not {wanted} after {timeout_seconds:g} s: {said}"
                remedy = f"wait longer, or see kubectl describe dtj {name}"
                raise WaitTimeoutError(name, problem, remedy)
            time.sleep(min(look_seconds, left))

    def logs(
        self, name: str, process: str = "", *, follow: bool = False, tail: int | None = None
    ) -> Iterator[Line]:
        """Pairs of a process and a line that it has written; of all processes without `process`.

        A process is a slot, shard-N or evaluator. With `follow` it continues, through restarts,
        until the job has no pods any more. `tail` keeps the last lines of each. Raises SpecError.
        """
        return Logs(self._core, self.namespace, name).lines(process, tail=tail, follow=follow)

    def suspend(self, name: str) -> TrainingJob:
        """End the job's learners and shards, and keep its run. Raises NotFoundError, SpecError."""
        return self._suspended(name, True)

    def resume(self, name: str) -> TrainingJob:
        """Continue the run of a suspended job. Raises NotFoundError, and SpecError."""
        return self._suspended(name, False)

    def edit(self, job: TrainingJob, spec: Mapping[str, Any]) -> TrainingJob:
        """Change these fields of the `spec`, each as a whole, of a job that was read before.

        Raises NotFoundError, and SpecError, also where somebody has changed the job meanwhile.
        """
        version = job.manifest["metadata"]["resourceVersion"]
        return self._patched(job.name, {"metadata": {"resourceVersion": version}, "spec": {**spec}})

    def _suspended(self, name: str, wanted: bool) -> TrainingJob:
        return self._patched(name, {"spec": {"suspend": wanted}})

    def _patched(self, name: str, body: Mapping[str, Any]) -> TrainingJob:
        patch = functools.partial(
            self._objects.patch_namespaced_custom_object, _content_type=MERGE_PATCH
        )
        return TrainingJob.read(self._ask(name, patch, name, body))

    def ask_checkpoint(self, name: str, step: int) -> TrainingJob:
        """Ask for a checkpoint of this step, or of a later one, of a job that trains.

        Training does not wait. `status.checkpoint` names it when it is whole. Raises NotFoundError,
        and SpecError.
        """
        annotations = {Annotation.CHECKPOINT: str(step)}
        return self._patched(name, {"metadata": {"annotations": annotations}})

    def delete(self, name: str) -> None:
        """Delete the job, and with it all that it owns. Raises NotFoundError, and SpecError."""
        self._ask(name, self._objects.delete_namespaced_custom_object, name)

    def _ask(self, name: str, call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        """One call of the API about the job `name`; its errors in a person's words."""
        try:
            return call(
                GROUP,
                VERSION,
                self.namespace,
                PLURAL,
                *words,
                **options,
                _request_timeout=self.call_seconds_max,
            )
        except client.ApiException as error:
            raise _refused(name, self.namespace, error) from error
        except urllib3.exceptions.HTTPError as error:
            problem = f"the cluster does not answer ({error})"
            raise AwayError(name, problem, REMEDY) from error


def is_there(job: TrainingJob, condition: str | Callable[[TrainingJob], bool]) -> bool:
    """Whether the job is what is waited for; raises FailedError if it cannot become that."""
    if not job.is_current and not job.is_true("Complete"):
        return False
    if job.is_true(condition) if isinstance(condition, str) else condition(job):
        return True
    for kind in ("Failed", "Complete"):
        found = job.status.true_condition(kind)
        if found is not None:
            raise _never(job, f"has become {kind}", found)
    if job.state == "Rejected" and condition != "Stalled":
        refused = job.condition("Accepted")
        if refused is not None:
            raise _never(job, "is not accepted", refused)
    return False


def _never(job: TrainingJob, problem: str, found: Condition) -> FailedError:
    remedy = REMEDIES.get((found.type, found.reason)) or f"see kubectl describe dtj {job.name}"
    problem = f"{problem}: {found.reason}" + (f": {found.message}" if found.message else "")
    return FailedError(job.name, problem, remedy, found.reason)


def _checked(document: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """The document of a manifest that a cluster accepts, as far as can be checked without one."""
    if isinstance(document, Path):
        try:
            document = document.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            remedy = "give a readable file"
            raise SpecError(str(document), f"cannot be read ({error})", remedy) from error
    text = document if isinstance(document, str) else json.dumps(document)
    found = parsing.document_in(text)
    job = parsing.from_object(found)
    refused = unsupported.nowhere(job) or unsupported.on_a_cluster(job)
    if refused is not None:
        raise refused
    return found


def _refused(name: str, namespace: str, error: client.ApiException) -> SpecError:
    said = message(error)
    if error.status == NOT_FOUND:
        problem = f"the namespace {namespace} has no such job ({said})"
        return NotFoundError(name, problem, "see kubectl get dtj --all-namespaces")
    if error.status == CONFLICT and _said(error, "reason") == "Conflict":
        return SpecError(name, "has changed meanwhile", "do it again")
    if error.status == CONFLICT:
        remedy = "delete that one first, or choose another metadata.name"
        return SpecError(name, f"is there already in the namespace {namespace}", remedy)
    if error.status is not None and (error.status >= SERVER_ERROR or error.status == BUSY):
        return AwayError(name, f"the cluster says {error.status}: {said}", "try again")
    field = _field(error)
    if field:
        return SpecError(field, said, "change it in the manifest; docs/spec.md has every field")
    return refused(name, error)


def _field(error: client.ApiException) -> str:
    """The field of a manifest that the API server finds wrong; empty: it names none."""
    return _said(error, "details", "causes", 0, "field")


def _said(error: client.ApiException, *path: str | int) -> str:
    """What stands there in the API server's answer; empty: nothing."""
    try:
        found = json.loads(error.body or "")
        for key in path:
            found = found[key]
    except (ValueError, KeyError, TypeError, IndexError):
        return ""
    return str(found)
