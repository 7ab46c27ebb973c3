"""The chart on a cluster, as `helm install` leaves it: two replicas, one of which leads."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.kubectl import Kubectl, until

CHART = Path(__file__).resolve().parents[2] / "helm/atoll"
NAMESPACE = "atoll-system"
RELEASE = "atoll"
CRD = "decoupledtrainingjobs.atoll.dev"
DEPLOYMENT = "deploy/atoll-operator"
REPLICAS = 2
SELECTOR = "app.kubernetes.io/name=atoll-operator"
LEASE = "atoll-operator"
LEADS_SECONDS_MAX = 300.0  # what is promised is 20 s; no test depends on how fast the machine is
FORCE = "--force-conflicts"  # a test may have applied the CRD with kubectl
OPERATOR_NODE = "c1-us-east-2"  # which no test cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One release."""

    kube: Kubectl
    helm: str

    def install(self, values: Mapping[str, str]) -> None:
        words = ("upgrade", "--install", RELEASE, str(CHART), "--create-namespace", FORCE)
        self._helm(*words, *_settings(values))

    def upgrade(self, values: Mapping[str, str]) -> int:
        """Change values of the release; returns the revision to roll back to."""
        former = self.revision()
        self._helm("upgrade", RELEASE, str(CHART), "--reuse-values", FORCE, *_settings(values))
        return former

    def revision(self) -> int:
        """The present revision of the release."""
        listed = json.loads(self._helm("history", RELEASE, "--output", "json", waits=False))
        return int(listed[-1]["revision"])

    def rollback(self, revision: int) -> None:
        self._helm("rollback", RELEASE, str(revision), FORCE)

    def uninstall(self) -> None:
        self._helm("uninstall", RELEASE)

    def owns_the_crd(self, release: str = RELEASE, namespace: str = NAMESPACE) -> None:
        """Give the CRD to a release, with the two commands of the chart's notes."""
        owner = (f"release-name={release}", f"release-namespace={namespace}")
        self.kube("label", "--overwrite", "crd", CRD, "app.kubernetes.io/managed-by=Helm")
        notes = [f"meta.helm.sh/{each}" for each in owner]
        self.kube("annotate", "--overwrite", "crd", CRD, *notes)

    def _helm(self, *words: str, waits: bool = True) -> str:
        program = (self.helm, f"--kubeconfig={self.kube.kubeconfig}", "--namespace", NAMESPACE)
        wait = ("--wait", "--timeout", "600s") if waits else ()
        done = subprocess.run(
            [*program, *words, *wait], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels and over all replicas, once all of them answer."""
        printed: list[str] = []

        def answered() -> bool:
            asked = [self.kube.attempt("get", "--raw", _metrics(pod)) for pod in self.pods()]
            printed[:] = [line for each in asked for line in each.stdout.splitlines()]
            return all(each.returncode == 0 for each in asked)

        until("all replicas answer", answered)
        found = [line for line in printed if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    # ------------------------------------------------------------ replicas

    def pods(self) -> dict[str, dict[str, Any]]:
        """The replicas' pods by name, without those that are being deleted."""
        found = self.kube.get("-n", NAMESPACE, "pods", "-l", SELECTOR)["items"]
        return {
            each["metadata"]["name"]: each
            for each in found
            if "deletionTimestamp" not in each["metadata"]
        }

    def ready(self) -> list[str]:
        return [name for name, each in self.pods().items() if _container(each).get("ready")]

    def restarts(self) -> dict[str, int]:
        """How often the container of each pod has been started again."""
        return {name: _container(each).get("restartCount", 0) for name, each in self.pods().items()}

    def lease(self) -> dict[str, Any]:
        """The spec of the Lease; empty before the first leader."""
        done = self.kube.attempt("-n", NAMESPACE, "get", "lease", LEASE, "-o", "json")
        return dict(json.loads(done.stdout)["spec"]) if done.returncode == 0 else {}

    def holder(self) -> str:
        """The name of the process that leads: its pod's, and what differs from a former one's."""
        return str(self.lease().get("holderIdentity") or "")

    def leader(self) -> str:
        """The pod that leads; waits until there is one."""
        until("a replica leads", lambda: self._leads(self.holder()), LEADS_SECONDS_MAX)
        return self.holder().rpartition("_")[0]

    def _leads(self, holder: str) -> bool:
        pod = holder.rpartition("_")[0]
        if pod not in self.pods():
            return False
        where = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/readyz"
        done = self.kube.attempt("get", "--raw", where)
        if done.returncode:
            return False
        body = json.loads(done.stdout)
        return bool(body["role"] == "leader" and body["leader"] == holder)

    def another_leads(self, former: str) -> str:
        """The holder that follows on a former one, once it leads."""

        def follows() -> bool:
            holder = self.holder()
            return holder not in ("", former) and self._leads(holder)

        until("another leads", follows, LEADS_SECONDS_MAX)
        return self.holder()

    def fresh(self) -> None:
        """Replace all replicas: the kubelet starts a container again at once the first time."""
        old = set(self.pods())
        self.kube("-n", NAMESPACE, "delete", "pod", "--grace-period=0", "--force", *old)
        until("other replicas", lambda: len(set(self.ready()) - old) == REPLICAS)
        self.leader()

    def kill(self, pod: str) -> None:
        os.kill(self.process(pod), signal.SIGKILL)

    def process(self, pod: str) -> int:
        """The operator in a pod, as this machine sees it."""
        return process_of(self.pods()[pod]["metadata"]["uid"], b"atoll-operator")


def process_of(uid: str, words: bytes) -> int:
    """The process with these words in its command in the pod with this UID."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it is no process, or has ended meanwhile
            program = (entry / "cmdline").read_bytes()
            if words in program and f"pod{uid}" in (entry / "cgroup").read_text():
                return int(entry.name)
    raise AssertionError(f"no process of pod {uid}")


def _metrics(pod: str) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics"


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = pod["status"].get("containerStatuses") or [{}]
    return dict(statuses[0])


def _settings(values: Mapping[str, str]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
