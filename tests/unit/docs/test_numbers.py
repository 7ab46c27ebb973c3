"""docs/numbers.md is made of the results, and the pages that link to a result have its values."""

from bench.numbers import PAGE, claims, page
from bench.results import read
from unit.docs.tree import files

PAGES = [each for each in files("README.md", "docs/*.md") if each != PAGE]
RESULTS = read()
CLAIMED = {each: claims(each.read_text(), RESULTS) for each in PAGES}


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(RESULTS), "run python -m bench.numbers in tests/"


def test_every_result_is_claimed_and_every_row_of_those_that_a_person_wrote() -> None:
    rows: dict[str, set[str]] = {}
    for of_page in CLAIMED.values():
        for result, claimed in of_page.items():
            rows.setdefault(result, set()).update(row.what for row in claimed)
    assert {*RESULTS} == {*filter(rows.get, rows)}
    for result, given in RESULTS.items():
        if "by hand" in given.about.lower():
            assert {row.what for row in given.figures} == rows[result], result
