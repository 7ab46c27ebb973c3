"""The images hold Atoll's programs and run as strictly as a cluster may ask."""

import re
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from cluster.dockerfiles import DOCKERFILES
from cluster.kubectl import Kubectl, until
from cluster.lab import roles
from cluster.manifests import task

NO_TORCH = """
import importlib.util, {imports}
assert importlib.util.find_spec("torch") is None
"""
TORCH = """
import importlib.util, torch, atoll_worker
assert importlib.util.find_spec("pytest") is None, "no package that a user would not have"
print(torch.ones(3).sum())
"""


Ended = Callable[[str], tuple[str, str]]  # a task's phase, and what it printed


@pytest.fixture(scope="module")
def tasks(kube: Kubectl, shared_namespace: str, image_of: Callable[[str], str]) -> Ended:
    """Run all tasks of this file at once; the result shows how one of them has ended."""
    programs = {
        "worker": TORCH,
        "syncer": NO_TORCH.format(imports="atoll_syncer.numbers.values"),
        "operator": NO_TORCH.format(imports="atoll_operator"),
    }
    made = [
        task(role, image_of(role), command=["python3", "-c", program])
        for role, program in programs.items()
    ]
    made += [task(f"{role}-help", image_of(role), args=["--help"]) for role in roles.COMMANDS]
    kube.apply(shared_namespace, *made)

    def ended(name: str) -> tuple[str, str]:
        def phase() -> str:
            return str(kube.get("-n", shared_namespace, "pod", name)["status"]["phase"])

        until(f"{name} ended", lambda: phase() in ("Succeeded", "Failed"))
        return phase(), kube("-n", shared_namespace, "logs", name)

    return ended


def test_torch_works_under_restricted_pod_security(tasks: Ended) -> None:
    phase, printed = tasks("worker")
    assert phase == "Succeeded", printed
    assert printed.endswith("tensor(3.)\n")


@pytest.mark.parametrize("role", ["operator", "syncer"])
def test_the_images_of_operator_and_syncer_have_no_torch(tasks: Ended, role: str) -> None:
    assert tasks(role) == ("Succeeded", "")


@pytest.mark.parametrize("role", roles.COMMANDS)
def test_an_image_starts_its_program(tasks: Ended, role: str) -> None:
    _, printed = tasks(f"{role}-help")
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


def test_the_operators_dockerfile_builds_what_runs(operators_build: Future[str]) -> None:
    assert "Usage: atoll" in operators_build.result()
