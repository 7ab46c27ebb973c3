"""A sentence of a page has at most 40 words, so that it is read once."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.docs.tree import files, name

WORDS_MAX = 40
PAGES = files("docs/*.md", "README.md")
BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
WORD = re.compile(r"\w[\w'/.,-]*")


def sentences(text: str) -> Iterator[str]:
    """Each sentence of paragraphs, lists and cells of tables; a word in code is one word."""
    for line in BLOCK.sub("", text).splitlines():
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", line))
        cells = plain.split(" | ") if plain.startswith("|") else [plain]
        for cell in cells:
            yield from re.split(r"(?<=[.!?])[)*\"]*\s+", cell)


def long(text: str) -> list[str]:
    """The sentences that are too long."""
    return [each for each in sentences(text) if len(WORD.findall(each)) > WORDS_MAX]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_sentence_of_a_page_is_longer_than_40_words(page: Path) -> None:
    assert long(page.read_text()) == []


def test_a_long_sentence_is_found_wherever_it_is() -> None:
    words = "word " * WORDS_MAX
    assert not long(f"{words}. {words}.\n- {words}.\n| {words} | {words} |\n")
    assert len(long(f"{words} more.\n- A. {words} more.\n| a | {words} `x y` |\n")) == 3
