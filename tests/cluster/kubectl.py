"""How tests talk to a cluster: kubectl as a person uses it, with a bound on every wait."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# No test depends on how fast the machine is: only failures take so long. What is promised in
# seconds is measured, and compared with what the same machine does before.
SECONDS_MAX = 600.0
# What kubectl says where a busy API server took nothing of a request: it asks for a schema first.
UNSENT = (
    "TLS handshake timeout",
    "error validating data: the server was unable to return a response",
)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """One cluster, as its kubeconfig names it."""

    program: str
    kubeconfig: str

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it prints; AssertionError with its words if it fails."""
        done = self.attempt(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def attempt(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl; again where it gave up on a busy machine before it had sent anything."""
        while True:
            done = subprocess.run(
                [self.program, f"--kubeconfig={self.kubeconfig}", *words],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=2 * SECONDS_MAX,
            )
            no_schema = "/openapi/" in done.stderr and "exceeded" in done.stderr
            if not (no_schema or any(words in done.stderr for words in UNSENT)):
                return done

    def apply(self, namespace: str, *objects: Object) -> None:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self("-n", namespace, "apply", "-f", "-", stdin=listed)

    def establish(self, crd: str) -> None:
        """Wait until a CRD that was applied is served; `kubectl wait` fails where it is too new."""
        words = ("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=60s")
        until(f"{crd} is served", lambda: not self.attempt(*words).returncode)

    def get(self, *words: str) -> dict[str, Any]:
        """Get one object or a list."""
        found: dict[str, Any] = json.loads(self("get", *words, "-o", "json"))
        return found

    def node_is_ready(self, node: str) -> bool:
        """Return whether a node's Ready condition is True."""
        conditions = self.get("node", node)["status"]["conditions"]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def node_lives(self, node: str, since: float) -> bool:
        """Return whether a node is Ready, and its kubelet has said so since then.

        A node that was lost stays Ready for up to a minute, in which nothing can start on it.
        """
        lease = self.get("-n", "kube-node-lease", "lease", node)
        renewed = datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()
        return renewed > since and self.node_is_ready(node)


def until(what: str, condition: Callable[[], bool], seconds_max: float = SECONDS_MAX) -> float:
    """Wait until the condition holds and return the seconds that took."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds_max, f"{what}: not within {seconds_max:.0f} s"
        time.sleep(0.3)  # kubectl itself takes as long
    return time.monotonic() - began
