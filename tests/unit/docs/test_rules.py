"""The numbers of rules that code and tests cite are those of docs/protocol.md; users see none."""

import ast
import re
from pathlib import Path

import pytest

from sim.checkers.every import ALL
from unit.docs.tree import ROOT, files, name

RULES = (ROOT / "docs/protocol.md").read_text()
CITED = re.compile(r"\brules?\s+(\d+(?:(?:,| and| to|, and)\s+\d+)*)", re.IGNORECASE)
SOURCES = files("*.py", "*.pyi", "*.proto", "*.md", "*.yaml", "*.toml")
PROGRAMS = files("operator/*.py", "worker/*.py", "syncer/*.py", "protos/*.py")
READ_BY_USERS = files("README.md", "examples/*", "crds/*", "helm/*", "docs/spec.md")


def rules() -> dict[int, str]:
    """Return the heading of each rule by its number."""
    headings = re.findall(r"^### (Rule (\d+)(\*?): .+)$", RULES, re.MULTILINE)
    return {int(number): heading for heading, number, _ in headings}


def cited(text: str) -> set[int]:
    """Return the numbers that a text cites."""
    return {int(number) for found in CITED.findall(text) for number in re.findall(r"\d+", found)}


def literals(path: Path) -> list[str]:
    """Return the strings of a module that a user may see: no docstrings, no texts of asserts."""
    tree = ast.parse(path.read_text())
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    hidden = {id(part) for node in asserts for part in ast.walk(node)}
    hidden |= {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden
    ]


def test_there_are_47_rules_and_each_has_an_anchor() -> None:
    assert sorted(rules()) == list(range(1, 48))
    for number in rules():
        assert f'<a id="rule-{number}"></a>\n### Rule {number}' in RULES


def test_every_rule_that_is_cited_exists() -> None:
    unknown = {
        f"{name(path)}: rule {number}"
        for path in SOURCES
        for number in cited(path.read_text())
        if number not in rules()
    }
    assert not unknown


def test_a_rule_has_a_star_where_the_simulation_has_a_checker() -> None:
    starred = {number for number, heading in rules().items() if f"Rule {number}*" in heading}
    assert starred == {int(re.findall(r"\d+", str(checker.rule))[0]) for checker in ALL}


@pytest.mark.parametrize("path", PROGRAMS, ids=name)
def test_no_message_cites_a_rule(path: Path) -> None:
    texts = literals(path)
    if path.parent.name == "cli":
        texts.append(path.read_text())  # its docstrings are the help
    assert not [text for text in texts if cited(text)]


@pytest.mark.parametrize("path", READ_BY_USERS, ids=name)
def test_no_page_of_a_user_cites_a_rule(path: Path) -> None:
    assert not cited(path.read_text())
