"""The docstring of each package lists all that is in it, and one name is one thing."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from unit.docs.tree import ROOT, files, name

PACKAGES = ("operator/**", "syncer/**", "worker/**", "protos/**")
SAME = {
    "AtollCallback": "the callback, for each of two trainers",
    "Effect": "what rules ask their driver to do, for shards and for learners",
    "Job": "the job, as its manifest has it and as a learner's process knows it",
}


def packages() -> list[Path]:
    """The `__init__.py` of every package that is installed, but of generated code."""
    found = files(*(f"{package}/__init__.py" for package in PACKAGES))
    return [path for path in found if path.parent.name != "v1"]


def parts(package: Path) -> set[str]:
    """Names of the modules and packages in it."""
    modules = {each.stem for each in package.parent.glob("*.py")} - {"__init__"}
    return modules | {each.parent.name for each in package.parent.glob("*/__init__.py")}


def unlisted(text: str, names: set[str]) -> list[str]:
    """Those of the names that stand nowhere in the text."""
    return sorted(each for each in names if not re.search(rf"\b{re.escape(each)}\b", text))


def test_there_are_packages() -> None:
    assert {name(path.parent) for path in packages()} >= {
        "operator/atoll_operator",
        "protos/atoll_protos",
        "syncer/atoll_syncer",
        "worker/atoll_worker",
    }


@pytest.mark.parametrize("package", packages(), ids=name)
def test_a_package_lists_all_that_is_in_it(package: Path) -> None:
    missing = unlisted(package.read_text(), parts(package))
    assert not missing, f"{name(package)}: add a line for {', '.join(missing)}"


def test_a_name_within_another_word_is_no_line_of_the_list() -> None:
    assert unlisted("- naming.py   names of tensors", {"naming", "name"}) == ["name"]


def dotted(package: Path) -> str:
    """A package as an import names it."""
    return ".".join(package.parent.relative_to(ROOT).parts[1:])


def test_a_contract_names_every_module_of_every_package() -> None:
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = read["tool"]["importlinter"]["contracts"]
    whole = [each for each in contracts if each["type"] == "layers" and each.get("exhaustive")]
    named = {container for each in whole for container in each.get("containers", ())}
    public = {"atoll"}
    assert {dotted(each) for each in packages() if len(parts(each)) > 1} - public <= named


def test_the_page_on_the_architecture_names_every_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition("## Packages")[2]
    block = page.split("```")[1]
    names = {part for each in packages() for part in dotted(each).split(".")}
    assert not [each for each in names if not re.search(rf"\b{each}\b", block)]


def test_no_two_public_classes_share_a_name_unless_they_are_the_same_thing() -> None:
    sources = [
        each for each in files(*PACKAGES) if each.suffix == ".py" and "_pb2" not in each.name
    ]
    names = Counter(
        node.name
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(names) > 500
    assert {name for name, count in names.items() if count > 1} == set(SAME)
