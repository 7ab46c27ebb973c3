"""What is generated for readers is current and complete."""

import re
from pathlib import Path

from atoll_operator.api import docs, presets, reasons

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_spec_md_is_current() -> None:
    remedy = "run python -m atoll_operator.api.docs > docs/spec.md"
    assert (DOCS / "spec.md").read_text() == docs.text(), remedy


def test_every_object_that_a_table_links_to_has_a_section() -> None:
    text = docs.text()
    headings = {
        "".join(letter for letter in line.lower() if letter.isalnum())
        for line in text.splitlines()
        if line.startswith("## ")
    }
    links = {part.partition(")")[0] for part in text.split("[object](#")[1:]}
    assert links
    assert links <= headings


def test_every_preset_and_every_reason_is_there() -> None:
    for name in presets.Preset:
        assert f"| `{name}` |" in docs.text()
    table = docs.conditions_table()
    for each in reasons.REASONS:
        assert re.search(
            rf"{each.status} `{each.reason}` \| (as at |{re.escape(each.meaning)})", table
        )
        assert f" | {each.meaning} | {each.remedy} |\n" in table.replace("\\|", "|")


def test_a_default_that_depends_on_the_preset_says_so() -> None:
    assert "| auto; with DiLoCo 1 | from 1 to 1000000 | no |" in docs.text()
