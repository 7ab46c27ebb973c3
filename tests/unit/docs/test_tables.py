"""What is listed in code is listed in the documents: conditions, exit codes, metrics, variables."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll_operator.api import conditions
from atoll_protos.exits import EXITS
from unit.docs.tables import PAGES, PLACE, TABLES, renewed
from unit.docs.tree import ROOT, files, name

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


def test_every_condition_is_explained_in_its_order() -> None:
    assert [cell for row in rows("Conditions") for cell in words(row[0])] == [*conditions.TYPES]


@pytest.mark.parametrize("reason", sorted(set(reasons_of_conditions()) - {"Running"}))
def test_every_reason_of_a_condition_is_explained(reason: str) -> None:
    assert f"`{reason}`" in OPERATING.split("## Lost nodes\n")[0]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_tables_that_are_made_from_the_code_are_current(page: Path) -> None:
    remedy = "run python tests/unit/docs/tables.py"
    assert page.read_text() == renewed(page.read_text()), remedy


def test_every_table_has_a_place() -> None:
    places = [place[1] for page in PAGES for place in PLACE.findall(page.read_text())]
    assert sorted(places) == sorted(TABLES)


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
