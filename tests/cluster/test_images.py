"""The images of operator and syncer have no torch, and the Dockerfiles for users build the same."""

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
IMPORTS = {"syncer": "atoll_syncer.numbers.values", "operator": "atoll_operator"}


@pytest.mark.parametrize("role", IMPORTS)
def test_the_images_of_operator_and_syncer_have_no_torch(
    role: str, kube: Kubectl, shared_namespace: str, image_of: Callable[[str], str]
) -> None:
    program = NO_TORCH.format(imports=IMPORTS[role])
    kube.apply(shared_namespace, task(role, image_of(role), command=["python3", "-c", program]))

    def phase() -> str:
        return str(kube.get("-n", shared_namespace, "pod", role)["status"].get("phase"))

    until(f"{role} ended", lambda: phase() in ("Succeeded", "Failed"))
    assert phase() == "Succeeded", kube("-n", shared_namespace, "logs", role)


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
