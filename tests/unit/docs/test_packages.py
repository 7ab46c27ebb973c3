"""The docstring of each package lists all that is in it."""

import re
import tomllib
from pathlib import Path

import pytest

from unit.docs.tree import ROOT, files, name

PACKAGES = ("operator/**", "syncer/**", "worker/**", "protos/**")


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


@pytest.mark.parametrize("package", packages(), ids=name)
def test_a_package_lists_all_that_is_in_it(package: Path) -> None:
    missing = unlisted(package.read_text(), parts(package))
    assert not missing, f"{name(package)}: add a line for {', '.join(missing)}"


def dotted(package: Path) -> str:
    """A package as an import names it."""
    return ".".join(package.parent.relative_to(ROOT).parts[1:])


def test_no_package_is_without_the_contract_against_circles() -> None:
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = read["tool"]["importlinter"]["contracts"]
    (circles,) = [contract for contract in contracts if contract["type"] == "acyclic_siblings"]
    alone = {"atoll", "atoll_integrations"}  # of one layer, and with a contract of its modules
    assert {dotted(path).split(".")[0] for path in packages()} - alone == set(circles["ancestors"])
