"""What pages state of versions, sizes and steps is that of the project, formulas and code."""

import inspect
import re
import tomllib

import pytest
import yaml

from atoll_operator.kube.effects.repair import Repair
from atoll_operator.kube.plan.losses import replacements
from unit.docs.tree import ROOT

SUPPORT = (ROOT / "docs/support.md").read_text()
SIZING = (ROOT / "docs/sizing.md").read_text()
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


def test_python_and_the_system_are_those_of_the_workflow_and_of_the_images() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())["jobs"].values()
    (python,) = (
        step["with"]["python-version"]
        for step in job["steps"]
        if "python-version" in step.get("with", {})
    )
    least = PROJECT["requires-python"].removeprefix(">=")
    assert row(SUPPORT, "Python")[1:] == [f"{least} or newer", f"{python}, as do the images"]
    for role in ("operator", "syncer", "worker"):
        assert f"ARG BASE=python:{python}-" in (ROOT / role / "Dockerfile").read_text()
    assert row(SUPPORT, "system")[2] == job["runs-on"].replace("ubuntu-", "Ubuntu ")


def number(cell: str) -> float:
    """The number with which a cell begins."""
    return float(cell.split(maxsplit=1)[0])


@pytest.mark.parametrize(("column", "n", "m", "t"), [(2, 1.0, 4, 1.0), (3, 12.0, 8, 10.0)])
def test_the_examples_of_sizing_follow_from_the_formulas(
    column: int, n: float, m: int, t: float
) -> None:
    """In units of 1e9: parameters, bytes and bits; a nanosecond for each is a second."""
    e = n / 24
    expected = {
        "a learner's network, each way": 16 * e / t,
        "a learner's host memory": 8 * n + 20 * e,
        "a learner's CPU, beside the loop": 6 * e / t,
        "its busiest thread": 2.6 * e,
        "the syncer's network, each way": m * 16 * e / t,
        "the syncer's CPU": (5 * m + 13) * e / t,
        "the syncer's memory": 10 * n + 4 * (m + 1) * e,
        "writing to disk, all shards": 8 * e / t,
        "room on disk, all shards": 20 * n,
    }
    for name, value in expected.items():
        assert number(row(SIZING, name)[column]) == pytest.approx(value, rel=0.03), name
    shards = number(row(SIZING, "shards, at least")[column])
    assert shards - 1 < 5 * m * e / t <= shards


def test_the_page_has_the_steps_of_a_replacement_in_the_order_of_the_code() -> None:
    """`repair.replace` has the last three; what comes before them is in the plan's docstring."""
    page = (ROOT / "docs/operating.md").read_text().partition("in this order:")[2]
    steps = re.findall(r"^\d\. (.*)$", page, re.MULTILINE)[:5]
    order = replacements.__doc__.partition("chosen (`placement_of`)")[2]
    marks = ("excludes", "observed", "Lease is still silent", "owner is retired", "deleted")
    assert [order.index(mark) for mark in marks] == sorted(order.index(mark) for mark in marks)
    words = ("keeps new pods off", "has observed", "still silent", "retires", "deletes")
    assert all(word in step for word, step in zip(words, steps, strict=True))
    code = inspect.getsource(Repair.replace)
    calls = ("_still_silent", "_retire(", "self.delete(")
    assert [code.index(call) for call in calls] == sorted(code.index(call) for call in calls)


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
