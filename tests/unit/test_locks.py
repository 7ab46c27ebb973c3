"""The locks of the images and of CI fit what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"^([\w.-]+)==([^ ;\\]+)", re.MULTILINE)
RENEW = "renew the locks: requirements/lock --upgrade-package NAME (or without words: all)"


def asked(extra: str) -> list[Requirement]:
    """What an extra asks for, with those that it includes."""
    found = [Requirement(each) for each in PROJECT["dependencies"]]
    for each in map(Requirement, PROJECT["optional-dependencies"][extra]):
        found += [r for e in each.extras for r in asked(e)] if each.name == "atoll" else [each]
    return found


@pytest.mark.parametrize("extra", ["dev", "operator", "worker", "syncer"])
def test_a_lock_has_what_the_project_asks_for_with_hashes(extra: str) -> None:
    text = (ROOT / f"requirements/{extra}.txt").read_text()
    pins = {name.lower().replace("_", "-"): found for name, found in PIN.findall(text)}
    for each in asked(extra):
        found = pins.get(each.name.lower().replace("_", "-"))
        assert found is not None, f"{each} is in no lock; {RENEW}"
        assert each.specifier.contains(found), f"the lock has {found}, asked is {each}; {RENEW}"
    entries = re.split(r"\n(?! )", text.strip())
    assert all("--hash=sha256:" in each for each in entries)
    assert "://" not in text  # whoever installs says from where


@pytest.mark.parametrize("role", ["operator", "worker", "syncer", "build"])
def test_an_image_has_the_versions_that_ci_tests(role: str) -> None:
    tested = set(PIN.findall((ROOT / "requirements/dev.txt").read_text()))
    assert set(PIN.findall((ROOT / f"requirements/{role}.txt").read_text())) <= tested


def test_what_draws_bugs_changes_no_version_that_ci_tests() -> None:
    tested = dict(PIN.findall((ROOT / "requirements/dev.txt").read_text()))
    for name, pinned in PIN.findall((ROOT / "requirements/mutation.txt").read_text()):
        assert tested.get(name, pinned) == pinned
