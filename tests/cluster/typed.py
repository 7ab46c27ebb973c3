"""What a person types in a shell: the commands of a page, and `kubectl atoll`, against the lab."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster.kubectl import Kubectl, until

ROOT = Path(__file__).resolve().parents[2]
BLOCK = r"^```{}\n(.*?)^```"
TYPED_SECONDS_MAX = 1800
PLUGIN = "from atoll_operator.cli import main\nmain()\n"


def blocks(page: str, heading: str, language: str = "sh") -> list[str]:
    """The blocks, of commands or of another language, that a page shows under a heading."""
    _, found, section = (ROOT / page).read_text().partition(f"\n{heading}\n")
    assert found, f"{page} has no {heading}"
    level = heading.partition(" ")[0]
    return _blocks(section.partition(f"\n{level} ")[0], language)


def commands_of_the_readme() -> list[str]:
    """The lines of the README for a cluster."""
    shown = _blocks((ROOT / "README.md").read_text(), "sh")
    return next(block for block in shown if "helm install" in block).splitlines()


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(BLOCK.format(language), text, re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A shell in a folder that has what the repository has, with kubectl, helm and the plugin."""

    folder: Path
    programs: Path  # where kubectl and helm are

    @classmethod
    def made(cls, folder: Path, kube: Kubectl) -> "Shell":
        """With the cluster of a kubeconfig as the current context."""
        found = cls(folder=folder, programs=Path(kube.program).parent)
        folder.mkdir(exist_ok=True)
        for name in ("examples", "helm"):
            (folder / name).symlink_to(ROOT / name)
        for name in ("atoll", "kubectl-atoll"):  # as pip writes them
            (folder / name).write_text(f"#!{sys.executable}\n{PLUGIN}")
            (folder / name).chmod(0o755)
        found.kubeconfig.write_text(Path(kube.kubeconfig).read_text())
        return found

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def knows(self, contexts: Mapping[str, Kubectl], namespace: str) -> None:
        """Have a context of each name, and none that is current."""
        found: dict[str, list[object]] = {"clusters": [], "users": [], "contexts": []}
        for name, kube in contexts.items():
            one = yaml.safe_load(Path(kube.kubeconfig).read_text())
            for kind, key in (("clusters", "cluster"), ("users", "user")):
                found[kind] += [{"name": name, key: one[kind][0][key]}]
            context = {"cluster": name, "user": name, "namespace": namespace}
            found["contexts"] += [{"name": name, "context": context}]
        whole = {"apiVersion": "v1", "kind": "Config", **found}
        self.kubeconfig.write_text(yaml.safe_dump(whole))

    def acts_as(self, kube: Kubectl, namespace: str, role: str) -> None:
        """Be an account of a namespace that has this ClusterRole there, and no other right."""
        account = role.rpartition("-")[2] or role
        bound = (f"--clusterrole={role}", f"--serviceaccount={namespace}:{account}")
        kube("-n", namespace, "create", "serviceaccount", account)
        kube("-n", namespace, "create", "rolebinding", account, *bound)
        asks = ("auth", "can-i", "get", "dtj", "-n", namespace)
        who = f"--as=system:serviceaccount:{namespace}:{account}"
        until("its right is known", lambda: kube.attempt(*asks, who).returncode == 0)
        token = kube("-n", namespace, "create", "token", account).strip()
        config = yaml.safe_load(self.kubeconfig.read_text())
        for each in config["users"]:
            each["user"] = {"token": token}
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def __call__(self, commands: str) -> str:
        """Run them in bash until one fails, and return what they print."""
        done = self.attempt(commands)
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def attempt(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Run them in bash until one fails, and return how it went."""
        path = f"{self.folder}:{self.programs}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=TYPED_SECONDS_MAX,
        )
