"""The versions that pages state are those of the project."""

import re
import tomllib

import pytest
import yaml

from unit.docs.tree import ROOT

SUPPORT = (ROOT / "docs/support.md").read_text()
LOCK = (ROOT / "requirements/dev.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def row(page: str, name: str) -> list[str]:
    """The cells of the row with this name."""
    (line,) = re.findall(rf"^\| {re.escape(name)} \|.*$", page, re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("torch", "torch", "worker"),
        ("transformers", "transformers", "transformers"),
        ("Lightning", "lightning", "lightning"),
        ("accelerate", "accelerate", "transformers"),
    ],
)
def test_a_library_has_the_versions_of_the_requirements(
    name: str, package: str, extra: str
) -> None:
    (least,) = (each.split(">=")[1] for each in EXTRAS[extra] if each.startswith(f"{package}>="))
    (tested,) = re.findall(rf"^{package}==(\S+)", LOCK, re.MULTILINE)
    assert row(SUPPORT, name)[1:] == [f"{least} or newer", tested]


def test_kubernetes_has_the_versions_of_the_chart_and_of_the_clusters() -> None:
    chart = yaml.safe_load((ROOT / "helm/atoll/Chart.yaml").read_text())["kubeVersion"]
    program = (ROOT / "tests/cluster/lab/binaries.py").read_text()
    (tested,) = re.findall(r'^KUBERNETES = "(\S+)"', program, re.MULTILINE)
    _, least, cell = row(SUPPORT, "Kubernetes")
    assert chart == f">={least.split()[0]}.0-0"
    assert cell == tested


def test_the_chart_has_the_version_of_the_wheel() -> None:
    chart = yaml.safe_load((ROOT / "helm/atoll/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (PROJECT["version"],) * 2


@pytest.mark.parametrize(
    "page", ["helm/atoll/values.yaml", "docs/kubernetes.md", "docs/clusters.md"]
)
def test_images_are_named_with_the_version_of_the_wheel(page: str) -> None:
    tags = re.findall(r"atoll-(?:operator|worker|syncer):(\S+)", (ROOT / page).read_text())
    assert len(tags) >= 3
    assert set(tags) == {PROJECT["version"]}
