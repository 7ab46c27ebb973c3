"""The chart on a cluster, as `helm install` leaves it."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.kubectl import Kubectl

CHART = Path(__file__).resolve().parents[2] / "helm/atoll"
NAMESPACE = "atoll-system"
RELEASE = "atoll"
DEPLOYMENT = "deploy/atoll-operator"
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
        listed = json.loads(self._helm("history", RELEASE, "--output", "json", waits=False))
        self._helm("upgrade", RELEASE, str(CHART), "--reuse-values", FORCE, *_settings(values))
        return int(listed[-1]["revision"])

    def rollback(self, revision: int) -> None:
        self._helm("rollback", RELEASE, str(revision), FORCE)

    def _helm(self, *words: str, waits: bool = True) -> str:
        program = (self.helm, f"--kubeconfig={self.kube.kubeconfig}", "--namespace", NAMESPACE)
        wait = ("--wait", "--timeout", "90s") if waits else ()
        done = subprocess.run(
            [*program, *words, *wait], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        where = f"/api/v1/namespaces/{NAMESPACE}/pods/{self.pod()}:8080/proxy/metrics"
        lines = self.kube("get", "--raw", where).splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def pod(self) -> str:
        pods = json.loads(self.kube("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
        return str(pods[0]["metadata"]["name"])

    def logs(self) -> str:
        return self.kube("-n", NAMESPACE, "logs", DEPLOYMENT, "--tail=40")


def _settings(values: Mapping[str, str]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
