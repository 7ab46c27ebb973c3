"""The count of `.ci/run`: the sum of all groups, and nothing that is skipped in silence."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from unit.docs.tree import ROOT

CASES = {
    "passed": "",
    "failed": "<failure message='no'/>",
    "broken": "<error message='no'/>",
    "skipped": "<skipped message='no root'/>",
}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("groups", ROOT / ".ci/groups.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GROUPS = load()


def report(folder: Path, *kinds: str) -> Path:
    """Write what pytest writes about tests that ended in these ways."""
    cases = "".join(
        f"<testcase classname='tests.x' name='test_{number}'>{CASES[kind]}</testcase>"
        for number, kind in enumerate(kinds)
    )
    path = folder / "group.xml"
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path


def test_the_groups_are_summed(tmp_path: Path) -> None:
    count = GROUPS.Count()
    count.add(report(tmp_path, "passed", "passed"), 0)
    count.add(report(tmp_path, "passed", "failed", "broken"), 1)
    assert count.line() == "3 passed, 2 failed"


def test_a_skipped_test_counts_as_failed_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = GROUPS.Count()
    count.add(report(tmp_path, "passed", "skipped"), 0)
    assert count.line() == "1 passed, 1 failed"
    monkeypatch.setattr(GROUPS, "MAY_SKIP", frozenset({"tests.x::test_1"}))
    count = GROUPS.Count()
    count.add(report(tmp_path, "passed", "skipped"), 0)
    assert count.line() == "1 passed, 0 failed, 1 skipped"


@pytest.mark.parametrize("status", [2, 5, -9])
def test_a_group_that_pytest_could_not_run_counts_as_one_failure(
    tmp_path: Path, status: int
) -> None:
    count = GROUPS.Count()
    count.add(tmp_path / "none.xml", status)
    assert count.line() == "0 passed, 1 failed"


def test_an_unknown_group_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["groups.py", "tests", "lokal"])
    assert GROUPS.main() == 2
    assert "unknown group lokal" in capsys.readouterr().out
