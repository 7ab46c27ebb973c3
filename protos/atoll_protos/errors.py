"""The user's errors: what was wrong, where, and what to do; and a peer's text in messages and logs.

Whoever may send a string may send any: a megabyte, a line break and a line that looks like one of
ours, sequences that move a terminal's cursor.
"""

from typing import Final


class SpecError(Exception):
    """Bad input, which only the user can fix. The text is one line: `field: problem; remedy`."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field, self.problem, self.remedy = field, problem, remedy

    def __reduce__(self) -> tuple[type["SpecError"], tuple[str, str, str]]:
        return SpecError, (self.field, self.problem, self.remedy)  # between processes


class AwayError(SpecError):
    """What was asked does not answer now, or has no room; it may later."""


def require(holds: bool, field: str, problem: str, remedy: str) -> None:
    if not holds:
        raise SpecError(field, problem, remedy)


LETTERS_MAX: Final = 100  # of a name
SENTENCE_LETTERS_MAX: Final = 1000


def printable(text: str, letters_max: int = LETTERS_MAX) -> str:
    """As `repr` has it, without its quotes: one line, at most `letters_max` characters."""
    escaped = repr(text[: letters_max + 1])[1:-1]
    return escaped if len(escaped) <= letters_max else f"{escaped[: letters_max - 1]}…"
