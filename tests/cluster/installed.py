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
OPERATOR_NODE = "c1-us-east-2"  # which no test cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One release."""

    kube: Kubectl
    helm: str

    def install(self, values: Mapping[str, str]) -> None:
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        done = subprocess.run(
            [self.helm, f"--kubeconfig={self.kube.kubeconfig}", "upgrade", "--install", RELEASE,
             str(CHART), "--namespace", NAMESPACE, "--create-namespace", "--wait",
             "--timeout", "90s", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

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
