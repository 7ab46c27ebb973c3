"""Each measured figure of the pages is in docs/numbers.md, as the text rounds it.

What is a figure, and when it is measured, `bench.numbers` says. All others are listed in
`bench/results/settings.toml`, as what they are.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench.numbers import PAGE, claims, numbers, page
from bench.results import FOLDER, Figure, Result, read
from unit.docs.tree import ROOT, files, name

PAGES = [each for each in files("README.md", "docs/*.md") if each != PAGE]
RESULTS = read()
SETTINGS = tomllib.loads((FOLDER / "settings.toml").read_text())
CLAIMED = {each: claims(each.read_text(), RESULTS) for each in PAGES}


def settings(page: Path) -> set[str]:
    return {figure for each in SETTINGS.get(page.stem, {}).values() for figure in each}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_figure_of_a_page_is_a_result_or_is_listed_as_a_setting(page: Path) -> None:
    figures = {str(each) for each in CLAIMED[page].others if each.is_figure}
    remedy = "link its section to numbers.md, or list it in tests/bench/results/settings.toml"
    assert figures - settings(page) == set(), remedy


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_listed_as_a_setting_is_on_the_page(page: Path) -> None:
    assert settings(page) <= {str(each) for each in numbers(page.read_text())}


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(RESULTS), "run python -m bench.numbers in tests/"


def test_every_result_is_claimed_and_every_row_of_those_that_a_person_wrote() -> None:
    rows: dict[str, set[str]] = {}
    for each in CLAIMED.values():
        for result, claimed in each.rows.items():
            rows.setdefault(result, set()).update(row.what for row in claimed)
    assert {*RESULTS} == {*filter(rows.get, rows)}
    for result, given in RESULTS.items():
        if "by hand" in given.about.lower():
            assert {row.what for row in given.figures} == rows[result], result


def test_every_list_of_settings_is_of_a_page() -> None:
    assert {*SETTINGS} <= {each.stem for each in PAGES}


def test_what_needs_no_machine_is_what_its_command_writes_now(tmp_path: Path) -> None:
    file = tmp_path / "published.json"
    words = [sys.executable, "-m", "bench.published", "--json", str(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(words, cwd=ROOT / "tests", check=True, capture_output=True, env=environment)
    written = read(tmp_path)["published"]
    assert written.command == "python -m bench.published"
    assert written.machine
    assert written.figures == RESULTS["published"].figures


TLS = Result(
    command="",
    date="",
    machine="",
    load="",
    commit="",
    about="",
    figures=[
        Figure(what="ratio", values=[0.8172]),
        Figure(what="late", values=[0.8172], unit="%"),
        Figure(what="with, without", values=[532.2, 651.4], unit="MiB/s"),
    ],
)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("TLS [had](numbers.md#tls) 0.82 of it: 532 of 651 MiB/s.", []),
        ("TLS [had](numbers.md#tls) 0.83 of it.", ["0.83"]),
        ("TLS [had](numbers.md#tls) 532 MiB/s.", ["532 MiB/s"]),
        ("TLS [had](numbers.md#tls) 651 of 532 MiB/s.", ["651 MiB/s", "532 MiB/s"]),
        ("TLS [had](numbers.md#tls) 532 of 651 GB/s.", ["532 GB/s", "651 GB/s"]),
        ("TLS [had](numbers.md#tls) 0.8.\n\n## More\n\nAnd 0.82.", ["0.82"]),
        ("4 to 5 s, 1,200 ms, 7% or 3 hours.", ["4 s", "5 s", "1,200 ms", "7 %", "3 hours"]),
        ("| 1.6 (3.4) | -0.09 |", ["1.6", "3.4", "-0.09"]),
        ("```\n1.5 s\n```\nVersion 2.15.0, arXiv 2604.21428, `1.5 s`, us-east-0, step-3", []),
    ],
)
def test_a_figure_that_nobody_has_measured_is_found(words: str, found: list[str]) -> None:
    others = claims(words, {"tls": TLS}).others
    assert [str(each) for each in others if each.is_figure] == found


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("M = 1", []),
        ("0.82", ["ratio"]),
        ("0.82%", ["ratio", "late"]),
        ("1%", ["late"]),
        ("532 of 651", []),
        ("532 of 651 MiB/s", ["with, without"]),
    ],
)
def test_a_whole_number_is_a_rounded_value_only_in_its_unit(words: str, rows: list[str]) -> None:
    claimed = claims(f"[Here](numbers.md#tls): {words}.", {"tls": TLS}).rows["tls"]
    assert [each.what for each in claimed] == rows


def test_a_number_without_a_unit_is_no_figure() -> None:
    assert not [each for each in numbers("3 learners, M = 8, 1,000 steps") if each.is_figure]
