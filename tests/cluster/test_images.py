"""The images hold Atoll's programs and run as strictly as a cluster may ask."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.kubectl import Kubectl, Object, until
from cluster.lab import binaries, images, roles
from cluster.lab.layout import ROOT
from cluster.manifests import task

NO_TORCH = """
import importlib.util, atoll_operator
assert importlib.util.find_spec("torch") is None
"""
TORCH = """
import importlib.util, torch, atoll_{role}
assert importlib.util.find_spec("pytest") is None, "no package that a user would not have"
print(torch.ones(3).sum())
"""
DOCKERFILES = {role: ROOT / role / "Dockerfile" for role in roles.COMMANDS}


def _run(kube: Kubectl, namespace: str, pod: Object) -> tuple[str, str]:
    """Run a task to its end, good or bad, and return its phase and what it printed."""
    name = pod["metadata"]["name"]
    kube.apply(namespace, pod)

    def phase() -> str:
        return str(kube.get("-n", namespace, "pod", name)["status"]["phase"])

    until(f"{name} ended", lambda: phase() in ("Succeeded", "Failed"))
    return phase(), kube("-n", namespace, "logs", name)


@pytest.mark.parametrize("role", ["worker", "syncer"])
def test_torch_works_under_restricted_pod_security_in(
    kube: Kubectl, namespace: str, image_of: Callable[[str], str], role: str
) -> None:
    program = TORCH.format(role=role)
    pod = task("torch", image_of(role), command=["python3", "-c", program])
    phase, printed = _run(kube, namespace, pod)
    assert phase == "Succeeded", printed
    assert printed.endswith("tensor(3.)\n")  # after a warning of torch that there is no NumPy


def test_the_operators_image_has_no_torch(
    kube: Kubectl, namespace: str, image_of: Callable[[str], str]
) -> None:
    pod = task("none", image_of("operator"), command=["python3", "-c", NO_TORCH])
    assert _run(kube, namespace, pod) == ("Succeeded", "")


@pytest.mark.parametrize("role", roles.COMMANDS)
def test_an_image_starts_its_program(
    kube: Kubectl, namespace: str, image_of: Callable[[str], str], role: str
) -> None:
    _, printed = _run(kube, namespace, task("help", image_of(role), args=["--help"]))
    assert roles.COMMANDS[role] in printed


@pytest.mark.parametrize("role", roles.COMMANDS)
def test_dockerfiles_differ_in_role_and_command_alone(role: str) -> None:
    text = DOCKERFILES[role].read_text()
    assert f'ENTRYPOINT ["{roles.COMMANDS[role]}"]' in text
    instructions = "".join(line for line in text.splitlines(True) if not line.startswith("#"))
    operators = DOCKERFILES["operator"].read_text()
    general = re.sub(rf'(?<=\[){role}(?=\]")', "operator", instructions)
    general = general.replace(f"requirements/{role}.txt", "requirements/operator.txt")
    general = general.replace(f'"{roles.COMMANDS[role]}"', f'"{roles.COMMANDS["operator"]}"')
    assert general in operators


def test_the_operators_dockerfile_builds_what_runs(prepared: None, tmp_path: Path) -> None:
    storage = ("--root", str(tmp_path / "root"), "--runroot", str(tmp_path / "run"))

    def buildah(*words: str) -> str:
        line = ["buildah", *storage, "--storage-driver", "overlay", *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    base = images.base_archive(binaries.programs())
    trusted = "/etc/ssl/certs:/etc/ssl/certs:ro"
    buildah("pull", "-q", f"oci-archive:{base}:{images.PYTHON}")
    buildah("bud", "-q", "--isolation=chroot", "--pull-never", "-v", trusted, "-t", "operator:user",
            f"--build-arg=BASE={images.PYTHON}", "-f", str(DOCKERFILES["operator"]),
            str(ROOT))  # fmt: skip
    container = buildah("from", "--pull-never", "operator:user")
    assert "Usage: atoll" in buildah(
        "run", "--isolation=chroot", container, "--", "atoll", "--help"
    )
    buildah("rm", "--all")
