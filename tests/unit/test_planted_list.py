"""The lists of planted bugs (tests/planted, tests/sim/bugs) fit the code as it stands."""

import ast
from collections import Counter

import pytest

from planted.bugs import ROOT, Bug, is_held, load, missing_tests
from sim.plants import PLANTS, Plant

BUGS = load()
BUGS_MIN, BUGS_MAX = 100, 700


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_planted_bug_can_still_be_planted_and_its_tests_exist(bug: Bug) -> None:
    name, planted = bug.planted_in(ROOT)
    assert planted != (ROOT / name).read_text()
    assert is_held(bug, ROOT)
    assert bug.tests
    assert not missing_tests(bug, ROOT)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.rule}: {plant.id}")
def test_a_bug_of_the_simulation_can_still_be_planted(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant.plant(monkeypatch)


def test_of_python_only_docstrings_are_quoted() -> None:
    for bug in BUGS:
        if bug.file.endswith(".py"):
            right = outline((ROOT / bug.file).read_text())
            assert ast.dump(outline(bug.planted_in(ROOT)[1])) == ast.dump(right), bug.id


def outline(text: str) -> ast.Module:
    """Parse a module, and empty its docstrings."""
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return module


def test_every_planted_bug_has_a_name_of_its_own() -> None:
    twice = [name for name, count in Counter(bug.id for bug in BUGS).items() if count > 1]
    assert not twice


def test_the_list_is_long_enough_and_not_longer() -> None:
    assert BUGS_MIN <= len(BUGS) <= BUGS_MAX
