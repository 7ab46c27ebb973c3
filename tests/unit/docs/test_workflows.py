"""Workflows, issue forms and hooks are YAML, and call what there is."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from unit.docs.tree import ROOT, files, name

WORKFLOWS = files(".github/workflows/*.yaml")
FORMS = files(".github/ISSUE_TEMPLATE/*", ".pre-commit-config.yaml")


def read(path: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(path.read_text())
    return content


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_a_form_is_a_mapping(path: Path) -> None:
    assert isinstance(read(path), dict)


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_a_workflow_pins_its_actions_and_limits_its_rights_and_its_time(path: Path) -> None:
    workflow = read(path)
    assert True in workflow, "the key `on`, which YAML reads as a truth value"
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", step["uses"])


def test_the_workflows_run_the_groups_of_ci_run() -> None:
    groups = (ROOT / ".ci/groups.py").read_text()
    used = {
        word
        for path in WORKFLOWS
        for words in re.findall(r"\.ci/run ([a-z ]+)$", path.read_text(), re.MULTILINE)
        for word in words.split()
    }
    assert used == {"checks", "tests", "seeds", "local"}
    matrix = read(ROOT / ".github/workflows/cluster.yaml")["jobs"]["cluster"]["strategy"]["matrix"]
    for group in {*used, *matrix["group"]} - {"checks"}:
        assert f'    "{group}": [' in groups


def test_hooks_run_programs_of_the_environment_and_download_nothing() -> None:
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert all(hook["language"] == "system" for hook in local["hooks"])
