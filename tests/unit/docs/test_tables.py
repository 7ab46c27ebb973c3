"""What the code lists, the documents list: the manifest, exit codes, metrics, variables, events."""

import re
from pathlib import Path

import pytest

from atoll_protos.environment import BY_NAME
from unit.docs.tables import PAGES, PLACE, SPEC, TABLES, renewed, spec_page
from unit.docs.tree import ROOT, files, name

RUN_FOLDER = (ROOT / "docs/run-folder.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_tables_that_are_made_from_the_code_are_current(page: Path) -> None:
    remedy = "run python tests/unit/docs/tables.py"
    assert page.read_text() == renewed(page.read_text()), remedy


def test_every_table_has_a_place() -> None:
    places = [place[1] for page in PAGES for place in PLACE.findall(page.read_text())]
    assert sorted(places) == sorted(TABLES)


def test_every_variable_of_the_programs_is_in_the_table() -> None:
    used = {
        variable
        for path in files("operator/*.py", "worker/*.py", "syncer/*.py", "protos/*.py")
        for variable in re.findall(r"\bATOLL_[A-Z_]+\b", path.read_text())
    }
    assert used == {*BY_NAME}


def test_every_event_of_the_run_folder_is_explained() -> None:
    events = {
        event
        for path in files("syncer/*.py", "worker/*.py")
        for event in re.findall(r'"event": "([a-z ]+)"', path.read_text())
    }
    assert {"commit", "start"} <= events
    assert not {event for event in events if f"`{event}`" not in RUN_FOLDER}


def test_spec_md_is_current() -> None:
    assert SPEC.read_text() == spec_page(), "run python tests/unit/docs/tables.py"
