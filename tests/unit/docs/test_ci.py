"""`.ci/run` sums all groups and skips nothing in silence."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from unit.docs.tree import ROOT

CASES = {
    "passed": "",
    "failed": "<failure message='no'/>",
    "broken": "<error message='no'/>",
    "skipped": "<skipped message='no root'/>",
}


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GROUPS = load(ROOT / ".ci/groups.py")


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


def test_clusters_and_servers_come_before_all_tests_and_only_for_groups_that_need_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[tuple[str, ...]] = []

    def noted(*words: str) -> int:
        ran.append(words)
        return 0

    monkeypatch.setattr(GROUPS, "run", noted)
    prepare = ("python", "tests/cluster", "prepare")
    GROUPS.run_groups(["seeds", "cluster"], tmp_path)
    assert [words == prepare for words in ran] == [True, False, False]
    ran.clear()
    GROUPS.run_groups(["seeds", "local"], tmp_path)
    assert prepare not in ran
    assert ran[0] == ("python", "tests/local/installed.py")
