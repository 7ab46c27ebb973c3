"""One operator as a process, an API server that tests spoil, and what jobs own there."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.api_faults.faulty import Proxy
from cluster.conftest import LabCommand
from cluster.kubectl import Kubectl, until
from cluster.lab.layout import run_folder
from cluster.lab.processes import CLUSTER_MARK, runs, start
from cluster.training import Job, manifest, pace

CRD = Path(__file__).resolve().parents[3] / "crds/decoupledtrainingjobs.yaml"
LEASE = "replica"
CHILDREN = "configmaps,deployments,poddisruptionbudgets,services,serviceaccounts,statefulsets,pvc"
CONVERGES_SECONDS_MAX = 600.0
HASH = re.compile(r"-[0-9a-f]{6,}$")  # in the name of a run file


@dataclass(slots=True, kw_only=True)
class World:
    """One operator, its proxy, and a namespace of the second cluster."""

    kube: Kubectl
    namespace: str
    proxy: Proxy
    process: subprocess.Popen[bytes]
    port: int

    def probe(self, name: str) -> tuple[int, dict[str, Any]]:
        """The status and the body of a probe."""
        url = f"http://127.0.0.1:{self.port}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def leads(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.probe("readyz")[1]["role"] == "leader")
        return False

    def apply(self, name: str, regions: dict[str, int], **spec: object) -> Job:
        """Apply a job whose pods need no node, and no torch."""
        job = Job(kube=self.kube, namespace=self.namespace, name=name)
        self.kube.apply(self.namespace, manifest(name, regions, **{"learner": pace(300), **spec}))
        return job

    def children(self, job: Job) -> dict[str, str]:
        """UIDs of all that a job owns but its pods, by kind and name."""
        selector = f"atoll.dev/job={job.name}"
        found = self.kube.get("-n", self.namespace, CHILDREN, "-l", selector)["items"]
        own = job.get()["metadata"]["uid"]
        assert all(each["metadata"]["ownerReferences"][0]["uid"] == own
                   for each in found if each["kind"] != "PersistentVolumeClaim")  # fmt: skip
        return {
            f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["uid"] for each in found
        }

    def shape(self, job: Job) -> set[str]:
        """What a job owns, without what its own name and its run lend to names."""
        found = set()
        for each in self.children(job):
            kind, _, name = each.partition("/")
            found.add(f"{kind} {HASH.sub('-HASH', name.removeprefix(job.name))}")
        sets = self.kube.get("-n", self.namespace, "sts", "-l", f"atoll.dev/job={job.name}")
        for each in sets["items"]:
            rest = each["metadata"]["name"].removeprefix(job.name)
            found.add(f"replicas of {rest}: {each['spec'].get('replicas')}")
        return found

    def comes_to(self, job: Job, shape: set[str]) -> None:
        until(
            f"{job.name} has what it should", lambda: self.shape(job) == shape,
            CONVERGES_SECONDS_MAX,
        )  # fmt: skip

    def has_kept(self, job: Job, made: dict[str, str]) -> bool:
        """Whether a job still owns what it has made; an edit replaces run files alone."""
        kept = {each for each in made.items() if not each[0].startswith("ConfigMap")}
        return kept <= self.children(job).items()

    def wrong_deletions(self, moment: float) -> list[str]:
        """The paths of what was deleted and is no run file."""
        return [each for each in self.deletions(moment) if "/configmaps/" not in each]

    def deletions(self, moment: float) -> list[str]:
        """The paths of objects that the API server was asked to delete, and that it had."""
        found = self.proxy.since(moment)
        return [each.path for each in found if each.verb == "delete" and each.status == 200]


def lives(job: Job) -> dict[str, tuple[str, int]]:
    return {
        name: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for name, pod in job.pods().items()
    }


def judged(job: Job) -> bool:
    """Whether the status follows on the whole of a pass over the manifest as it is now."""
    raw = job.get()
    said = raw.get("status", {}).get("conditions", [])
    return any(
        (each["type"], each["status"]) == ("Accepted", "True")
        and each["observedGeneration"] == raw["metadata"]["generation"]
        for each in said
    )


def settled(world: World, job: Job) -> set[str]:
    """What a job owns once the operator has made it, and it has not changed for three seconds."""
    found: list[set[str]] = []
    until("it is judged", lambda: judged(job), CONVERGES_SECONDS_MAX)

    def same() -> bool:
        found.append(world.shape(job))
        time.sleep(1.0)
        return len(found) > 3 and bool(found[-1]) and found[-1] == found[-2] == found[-3]

    until("nothing changes", same, CONVERGES_SECONDS_MAX)
    return found[-1]


def edit(job: Job) -> None:
    """Another region, and a learner less in the first one."""
    job.patch(
        regions=[{"name": name, "learners": 1} for name in ("eu-west", "us-east", "ap-south")]
    )


@dataclass(slots=True, kw_only=True)
class ApiServer:
    """The process of the second cluster's API server: to be killed and started again as it was.

    The kernel frees the port of a killed process only after the last of its threads has gone, so
    one that finds the port taken, and ends, is started once more.
    """

    kube: Kubectl
    command: list[str]
    pids: list[int]  # the last one is the present one

    @classmethod
    def found(cls, lab: LabCommand, kube: Kubectl) -> "ApiServer":
        pid = lab.status()["clusters"][1]["pids"]["kube-apiserver"]
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
        return cls(kube=kube, command=command, pids=[pid])

    def restart(self) -> None:
        """Kill it, and have it again."""
        pid = self.pids[-1]
        os.kill(pid, signal.SIGKILL)
        until("it has ended", lambda: not runs(pid))
        self.put_back()

    def put_back(self) -> None:
        """Wait until it is ready; start it where it does not run."""
        log = run_folder() / "c2/log/kube-apiserver.log"

        def ready() -> bool:
            if not runs(self.pids[-1]):
                self.pids.append(start(self.command, log, {CLUSTER_MARK: "c2"}))
            return not self.kube.attempt("get", "--raw", "/readyz").returncode

        try:
            until("the API server is ready", ready)
        except AssertionError:
            sys.stderr.write(f"API servers {self.pids}\n{log.read_text()[-4000:]}")
            raise
