"""The versions that pages state are those of the project."""

import re
import tomllib

import pytest
import yaml

from unit.docs.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
