"""What is listed in code is listed in the documents: conditions, exit codes, metrics, variables."""

import ast
import re
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics import MetricWrapperBase

from atoll_operator.api import conditions
from atoll_operator.kube.metrics import Metrics as OperatorMetrics
from atoll_protos.exits import EXITS, ExitCode
from atoll_syncer.metrics import Metrics as ShardMetrics
from unit.docs.tree import ROOT, files

OPERATING = (ROOT / "docs/operating.md").read_text()
SCRIPTS = (ROOT / "docs/training-scripts.md").read_text()
RUN_FOLDER = (ROOT / "docs/run-folder.md").read_text()
CONCEPTS = (ROOT / "docs/concepts.md").read_text()


def rows(section: str) -> list[list[str]]:
    """Return the cells of the table in a section of operating.md, without its head."""
    text = OPERATING.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def words(cell: str) -> set[str]:
    """Return what a cell names in code."""
    return set(re.findall(r"`([^`]+)`", cell))


def reasons_of_conditions() -> Iterator[str]:
    """Return every reason that the modules of conditions and phases give."""
    modules = [ROOT / "operator/atoll_operator/api/conditions.py"]
    modules += files("operator/atoll_operator/kube/plan/phase.py")
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            given = node.value if isinstance(node, ast.keyword) and node.arg == "reason" else None
            if isinstance(given, ast.Constant):
                yield str(given.value)
    yield from (row.reason for row in EXITS.values() if row.permanent)
    yield conditions.STORE_LOST


def labels_of(program: Callable[[CollectorRegistry], object]) -> dict[str, set[str]]:
    """Return the labels of each metric of a program, by the metric's name as it is scraped."""
    found = {}
    for metric in vars(program(CollectorRegistry())).values():
        if isinstance(metric, MetricWrapperBase):
            total = "_total" if isinstance(metric, Counter) else ""
            found[f"{metric._name}{total}"] = {*metric._labelnames}
    return found


def test_every_condition_is_explained_in_its_order() -> None:
    assert [cell for row in rows("Conditions") for cell in words(row[0])] == [*conditions.TYPES]


@pytest.mark.parametrize("reason", sorted(set(reasons_of_conditions()) - {"Running"}))
def test_every_reason_of_a_condition_is_explained(reason: str) -> None:
    assert f"`{reason}`" in OPERATING.split("## Lost nodes\n")[0]


def test_every_exit_code_is_explained() -> None:
    listed = {int(row[0]): words(row[1]) for row in rows("Exit codes")}
    assert listed == {code.value: {code.name} for code in ExitCode}


def test_every_metric_is_listed_with_its_labels() -> None:
    listed = {min(words(row[0])): words(row[1]) for row in rows("Metrics")}
    assert listed == {**labels_of(ShardMetrics), **labels_of(lambda _: OperatorMetrics())}


def test_every_variable_is_explained() -> None:
    used = {
        variable
        for path in files("operator/*.py", "worker/*.py", "syncer/*.py", "protos/*.py")
        for variable in re.findall(r"\bATOLL_[A-Z_]+\b", path.read_text())
    }
    missing = {each for each in used if f"`{each}`" not in OPERATING + SCRIPTS}
    assert not missing


def test_every_event_of_the_run_folder_is_explained() -> None:
    events = {
        event
        for path in files("syncer/*.py", "worker/*.py")
        for event in re.findall(r'"event": "([a-z ]+)"', path.read_text())
    }
    assert {"commit", "start"} <= events
    assert not {event for event in events if f"`{event}`" not in RUN_FOLDER}


def test_every_word_of_the_glossary_comes_once_and_in_order() -> None:
    glossary = CONCEPTS.split("## Glossary\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| \*\*([^*]+)\*\*", glossary, re.MULTILINE)
    assert found == sorted(found, key=str.lower)
    assert len(found) == len(set(found))
