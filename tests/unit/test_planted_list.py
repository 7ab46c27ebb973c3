"""The list of planted bugs (tests/planted) fits the code as it stands."""

from collections import Counter

import pytest

from planted.bugs import ROOT, Bug, load, missing_tests

BUGS = load()
BUGS_MIN = 100


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_planted_bug_can_still_be_planted_and_its_tests_exist(bug: Bug) -> None:
    planted = bug.planted_in((ROOT / bug.file).read_text())
    assert planted.count("\n") > 1
    assert bug.old != bug.new
    assert bug.breaks
    assert bug.tests
    assert not missing_tests(bug, ROOT)


def test_every_planted_bug_has_a_name_of_its_own() -> None:
    twice = [name for name, count in Counter(bug.id for bug in BUGS).items() if count > 1]
    assert not twice


def test_the_list_is_long_enough() -> None:
    assert len(BUGS) >= BUGS_MIN
