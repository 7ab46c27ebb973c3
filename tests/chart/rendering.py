"""What the tests of the chart share: helm, and how they read what it renders."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm/atoll"

Rendered = list[dict[str, Any]]


def run(helm: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm, *words], capture_output=True, text=True, check=False)


def template(helm: str, *sets: str) -> Rendered:
    """Render what an install makes."""
    return [each for each in _rendered(helm, *sets) if not _is_hook(each)]


def hooks(helm: str, *sets: str) -> Rendered:
    """Render what `helm test` makes."""
    return [each for each in _rendered(helm, *sets) if _is_hook(each)]


def _is_hook(each: dict[str, Any]) -> bool:
    return "helm.sh/hook" in each["metadata"].get("annotations", {})


def _rendered(helm: str, *sets: str) -> Rendered:
    words = [word for each in sets for word in ("--set", each)]
    done = run(helm, "template", "atoll", str(CHART), "--namespace", "atoll-system", *words)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(rendered: Rendered, kind: str) -> Rendered:
    return [each for each in rendered if each["kind"] == kind]


def named(rendered: Rendered, kind: str, name: str) -> Rendered:
    return [each for each in of_kind(rendered, kind) if each["metadata"]["name"] == name]


def rights(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """Verbs by group and resource."""
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
