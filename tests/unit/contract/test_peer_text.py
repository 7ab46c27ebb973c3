"""A peer's text is one short line of printable characters, whatever it was."""

from hypothesis import given
from hypothesis import strategies as st

from atoll_protos.errors import LETTERS_MAX, printable


@given(st.text())
def test_any_text_is_one_line_of_printable_characters(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= LETTERS_MAX


def test_a_name_stays_as_it_is() -> None:
    for name in ("eu-west-0", "größe", "x" * LETTERS_MAX, "it's"):
        assert printable(name) == name


def test_a_forged_line_and_a_sequence_of_a_terminal_are_escaped() -> None:
    assert printable("1\nmachine eu has entered") == r"1\nmachine eu has entered"
    assert printable("\x1b]0;owned\x07") == r"\x1b]0;owned\x07"


def test_a_long_text_is_cut_and_shows_it() -> None:
    assert printable("x" * (15 << 20)) == "x" * (LETTERS_MAX - 1) + "…"
    assert printable("\n" * LETTERS_MAX) == "\\n" * ((LETTERS_MAX - 1) // 2) + "\\…"
