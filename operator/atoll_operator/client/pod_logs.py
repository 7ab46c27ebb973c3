"""The logs of a job's pods, for `atoll logs JOB`: as a person reads them, with their own rights.

A process has the name that it has under `atoll run`: its slot, shard-N or evaluator. A host of a
learner of several hosts is called by slot and number, and the slot means all of them. So shard-N
means both processes of a shard with a standby, and shard-N-b is the second one.

Following goes through restarts: one thread for each pod reads the stream of its container, and a
stream that ends is begun again for as long as the pod is there. The API can say "since" only in
whole seconds, so lines are asked for with their time, and those that have been seen are left out.
"""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import urllib3
from kubernetes import client

from atoll_operator.client.reach import CALL_SECONDS_MAX, asking, message, reach
from atoll_operator.kube.names import LEARNER_ROLE, SHARD_ROLE
from atoll_protos.errors import SpecError
from atoll_protos.names import Label

LOOK_SECONDS = 2.0  # between two looks for new pods
AHEAD_LINES_MAX = 1000  # that are read and not shown yet: who reads the output may be slow
SILENT_SECONDS_MAX = 60.0  # that a follower bears without an answer of the API server
HTTP_OK, FORBIDDEN = 200, (401, 403)

Line = tuple[str, str]  # process, line


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPod:
    """A pod of the job. `began`: its container has begun to write."""

    name: str
    uid: str
    process: str
    learner: str  # the slot of which it is one host; empty: it is no such pod
    shard: str  # of which it is a process; empty: of none
    container: str
    began: bool
    ready: bool
    node: str  # empty while it has none

    def answers_to(self, process: str) -> bool:
        return process in ("", self.process, self.learner, self.shard)


@dataclass(slots=True)
class Logs:
    """The pods' logs of one job in a namespace."""

    core: Any
    namespace: str
    job: str
    seen: dict[str, str] = field(default_factory=dict)  # time of the last line, by the pod's UID
    refused: set[str] = field(default_factory=set)  # UIDs of pods whose log was refused

    def lines(self, process: str, *, tail: int | None, follow: bool) -> Iterator[Line]:
        """Pairs of a process and a line; `process` empty: all. Raises SpecError.

        Begins with the last `tail` lines of each pod (None: all). With `follow` it continues until
        the job has no pods any more.
        """
        pods = self.pods()
        if not pods:
            problem = f"has no pods in the namespace {self.namespace}"
            remedy = "a job that is over or suspended has none; see kubectl get dtj, or use -n"
            raise SpecError(self.job, problem, remedy)
        if not any(pod.answers_to(process) for pod in pods):
            has = ", ".join(sorted({pod.process for pod in pods}))
            raise SpecError(process, f"is not a process of {self.job}", f"it has {has}")
        if follow:
            yield from self._followed(process, tail)
            return
        for pod in pods:
            if pod.answers_to(process):
                yield from self._read(pod, tail, follow=False)

    def pods(self) -> list[LoggedPod]:
        found = (_pod(self.job, each) for each in self.listed())
        return sorted(found, key=lambda pod: pod.process)

    def listed(self, role: str = "") -> list[Any]:
        """The job's pods, or those of a role, as the client has them. Raises SpecError."""
        selector = f"{Label.JOB}={self.job}" + (f",{Label.ROLE}={role}" if role else "")
        with asking(self.job):
            listed = self.core.list_namespaced_pod(
                self.namespace, label_selector=selector, _request_timeout=CALL_SECONDS_MAX
            )
        return list(listed.items)

    def _followed(self, process: str, tail: int | None) -> Iterator[Line]:
        arrived: queue.Queue[Line] = queue.Queue(AHEAD_LINES_MAX)
        readers: dict[str, threading.Thread] = {}
        looked_at, heard_at = -LOOK_SECONDS, time.monotonic()
        while True:
            if time.monotonic() - looked_at >= LOOK_SECONDS:
                looked_at = time.monotonic()
                try:
                    pods = [pod for pod in self.pods() if pod.answers_to(process)]
                except SpecError:
                    if looked_at - heard_at > SILENT_SECONDS_MAX:
                        raise
                    continue
                heard_at = looked_at
                running = {uid: each for uid, each in readers.items() if each.is_alive()}
                for pod in pods:
                    if pod.began and pod.uid not in running:
                        readers[pod.uid] = self._reader(pod, tail, arrived)
                if not pods and not running and arrived.empty():
                    return
            try:
                yield arrived.get(timeout=LOOK_SECONDS / 4)
            except queue.Empty:
                continue

    def _reader(
        self, pod: LoggedPod, tail: int | None, arrived: "queue.Queue[Line]"
    ) -> threading.Thread:
        def read() -> None:
            for line in self._read(pod, tail, follow=True):
                arrived.put(line)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def _read(self, pod: LoggedPod, tail: int | None, *, follow: bool) -> Iterator[Line]:
        """The container's log; with `follow` until the stream ends, without lines of before."""
        before = self.seen.get(pod.uid, "")
        try:
            answer = self.core.read_namespaced_pod_log(
                pod.name,
                self.namespace,
                container=pod.container,
                follow=follow,
                timestamps=True,
                tail_lines=None if before else tail,
                since_seconds=_seconds_since(before) if before else None,
                _preload_content=False,
                _request_timeout=None if follow else CALL_SECONDS_MAX,
            )
            if answer.status != HTTP_OK:
                raise client.ApiException(http_resp=answer)
            for raw in _whole_lines(answer):
                moment, _, line = raw.partition(" ")
                moment = moment.removesuffix("Z")  # so that texts are in the order of times
                if moment > before:
                    self.seen[pod.uid] = moment
                    yield pod.process, line
        except client.ApiException as error:
            told = error.status not in FORBIDDEN or pod.uid in self.refused
            self.refused.add(pod.uid)
            if not follow or not told:  # a follower comes back, and is told of a refusal once
                yield pod.process, f"(no log: {message(error)})"
        except urllib3.exceptions.HTTPError as error:
            if not follow:
                yield pod.process, f"(the log broke off: {error})"


def connect(job: str, namespace: str, context: str) -> Logs:
    """Raises SpecError without a kubeconfig that can be used."""
    found = reach(job, namespace, context)
    return Logs(client.CoreV1Api(found.api), found.namespace, job)


def _pod(job: str, raw: Any) -> LoggedPod:
    labels = raw.metadata.labels or {}
    role, container = labels.get(Label.ROLE, ""), raw.spec.containers[0].name
    shard = f"shard-{labels.get(Label.SHARD, '')}" if role == SHARD_ROLE else ""
    second = f"-{labels[Label.PROCESS]}" if Label.PROCESS in labels else ""
    process = {
        LEARNER_ROLE: raw.metadata.name.removeprefix(f"{job}-"),
        SHARD_ROLE: f"{shard}{second}",
    }.get(role, role)
    states = {each.name: each.state for each in raw.status.container_statuses or []}
    state = states.get(container)
    return LoggedPod(
        name=raw.metadata.name,
        uid=raw.metadata.uid,
        process=process,
        learner=labels.get(Label.SLOT, ""),
        shard=shard,
        container=container,
        began=bool(state and (state.running or state.terminated)),
        ready=is_ready(raw),
        node=raw.spec.node_name or "",
    )


def is_ready(raw: Any) -> bool:
    conditions = raw.status.conditions or ()
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def _seconds_since(moment: str) -> int:
    """Whole seconds since a time in RFC 3339 (UTC without a zone), and one more; at least 1."""
    begun = datetime.fromisoformat(moment)
    begun = begun if begun.tzinfo else begun.replace(tzinfo=UTC)
    return max(1, int(time.time() - begun.timestamp()) + 2)


def _whole_lines(answer: Any) -> Iterator[str]:
    rest = b""
    for chunk in answer.stream(amt=None, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", errors="replace")
    if rest:
        yield rest.decode("utf-8", errors="replace")
