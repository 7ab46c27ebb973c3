"""Planted bugs are found by scope and pattern, wherever their code stands."""

from pathlib import Path

import pytest

from planted.bugs import Bug

STORE = '''"""Keep entries."""

LIMIT: int = 3  # of both


class Store:
    @property
    def size(self) -> int:
        """ä"""
        return len(self.entries) - 1

    def append(self, entry: str) -> None:
        umlaut, self.entries = "ü", [*self.entries, entry]
        if self.size > LIMIT and not (  # why
            entry
        ):
            self.flush()
        self.flush()


if LIMIT:
    print("a", sep="b", end="c")
    print(any(number > 0 for number in [LIMIT]))
'''


def planted(
    folder: Path, scope: str, pattern: str, becomes: str, *, nth: int = 0, file: str = "a/store.py"
) -> str:
    """Plant a bug into the store, which stands in some file, and return the lines that differ."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(STORE)
    bug = Bug(id="x", tests=(), scope=scope, pattern=pattern, becomes=becomes, nth=nth)
    name, text = bug.planted_in(folder)
    assert name == file
    return "\n".join(line.strip() for line in text.split("\n") if line not in STORE.split("\n"))


@pytest.mark.parametrize(
    ("scope", "pattern", "becomes", "changed"),
    [
        ("Store.size", "len(self.entries)", "0", "return 0 - 1"),
        ("Store.size", "len(self.entries) - 1", "0 or 1", "return (0 or 1)"),
        ("Store.size", "return len(self.entries) - 1", "", "pass"),
        ("Store.append", "self.size > LIMIT and not entry", "True", "if True:"),
        ("Store.append", "*self.entries", "*()", 'umlaut, self.entries = "ü", [*(), entry]'),
        ("Store", "if self.size > LIMIT and not entry:\n    self.flush()", "self.x()", "self.x()"),
        ("LIMIT", "", "4", "LIMIT: int = 4  # of both"),
        ("", "any(number > 0 for number in [LIMIT])", "1", "print(1)"),
        ("", 'sep="b"', "", 'print("a", end="c")'),
        ("", "end = 'c'", "", 'print("a", sep="b")'),
        ("", "end='c'", "end='d'", """print("a", sep="b", end='d')"""),
        ("", "(number > 0 for number in [LIMIT])", "[0]", "print(any([0]))"),
    ],
)
def test_a_pattern_is_replaced_where_it_fits_once(
    tmp_path: Path, scope: str, pattern: str, becomes: str, changed: str
) -> None:
    assert planted(tmp_path, f"a:{scope}", pattern, becomes) == changed
    moved = planted(tmp_path / "b", f"a:{scope}", pattern, becomes, file="a/c/other.py")
    assert moved == changed


@pytest.mark.parametrize(
    ("scope", "pattern", "places"),
    [
        ("Store.append", "self.entries", 2),
        ("Store.append", "self.flush()", 2),
        ("Store.size", "self.flush()", 0),
        ("Store.flush", "self.flush()", 0),
        ("", "self.flush()", 0),
    ],
)
def test_a_pattern_that_fits_not_once_names_its_scope(
    tmp_path: Path, scope: str, pattern: str, places: int
) -> None:
    with pytest.raises(ValueError, match=f"fits {places} places of a:{scope}$"):
        planted(tmp_path, f"a:{scope}", pattern, "0")


def test_of_several_places_the_nth_is_meant(tmp_path: Path) -> None:
    line = planted(tmp_path, "a:Store.append", "self.entries", "self.x", nth=2)
    assert line == 'umlaut, self.entries = "ü", [*self.x, entry]'
