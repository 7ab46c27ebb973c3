"""Bugs planted in the production rules or in the simulation's edge, to prove the checkers.

They are in the TOML files of `bugs`. An entry has `id`, `scope`, `pattern`, `becomes` and `nth` as
in tests/planted, the `rule` whose checker must find it, and the `seed` that is tried first (1
without it): one that showed the bug when the entry was written. A bug that needs edits of more than
one place has the others in `also`. A scope is a function of a module, or a method.

Here a bug is planted in a process that runs: such a function gets the code of the changed text,
wherever it is known already.
"""

import importlib
import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from planted.bugs import ROOT
from planted.patterns import Match, find_one

BUGS = Path(__file__).resolve().parent / "bugs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    scope: str
    pattern: str
    becomes: str = ""
    nth: int = 0

    def place(self) -> Match:
        """Return where it is made; ValueError when the text has moved on."""
        return find_one(ROOT, self.scope, self.pattern, self.becomes, self.nth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    id: str
    rule: str
    seed: int
    edits: tuple[Edit, ...]

    def planted(self) -> dict[Path, str]:
        """Return the files that differ, each with its text; ValueError when it has moved on."""
        texts: dict[Path, str] = {}
        for edit in sorted(self.edits, key=lambda edit: edit.place().start, reverse=True):
            place = edit.place()
            texts[place.path] = place.replaced_by(edit.becomes, texts.get(place.path, ""))
        return texts

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Until the patch ends."""
        texts = self.planted()
        codes = {path: dict(codes_in(compile(text, path, "exec"))) for path, text in texts.items()}
        for edit in self.edits:
            path, name = edit.place().path, edit.scope.partition(":")[2]
            patch.setattr(living(path, name), "__code__", codes[path][name])


def codes_in(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yield the code objects of all functions, by qualified name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from codes_in(constant)


def living(path: Path, name: str) -> FunctionType:
    """Return the function of a module that has been imported, by qualified name."""
    thing = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts[1:]))
    for part in name.split("."):
        thing = inspect.getattr_static(thing, part)
    function = getattr(thing, "fget", getattr(thing, "__func__", thing))
    assert isinstance(function, FunctionType), f"{path}: {name}"
    return function


def load() -> tuple[Plant, ...]:
    """Read all of them."""
    plants = []
    for path in sorted(BUGS.glob("*.toml")):
        for bug in tomllib.loads(path.read_text())["bug"]:
            about = {key: bug.pop(key) for key in ("id", "rule")}
            seed, also = bug.pop("seed", 1), bug.pop("also", [])
            edits = tuple(Edit(**edit) for edit in (bug, *also))
            plants.append(Plant(**about, seed=seed, edits=edits))
    return tuple(plants)


PLANTS = load()
