"""Bugs planted in the production rules or in the simulation's edge, to prove the checkers.

They are text edits, as in tests/planted, in the TOML files of `bugs`. An entry has `id`, `file`,
`old` and `new` as there, the `rule` whose checker must find it, and the `seed` that is tried first
(1 without it): one that showed the bug when the entry was written. A bug that needs edits of more
than one file, or of more than one place, has the others in `also`.

Here a bug is planted in a process that runs: the functions and methods in which a file's text
differs get the code of the changed text, wherever they are known already.
"""

import ast
import importlib
import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest

BUGS = Path(__file__).resolve().parent / "bugs"
ROOT = BUGS.parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    id: str
    rule: str
    seed: int
    edits: tuple[Edit, ...]

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Until the patch ends. Raises AssertionError where the text has moved on."""
        for file in dict.fromkeys(each.file for each in self.edits):
            before = after = (ROOT / file).read_text()
            for each in self.edits:
                if each.file == file:
                    count = after.count(each.old)
                    assert count == 1, f"{self.id}: {each.old!r} occurs {count} times in {file}"
                    after = after.replace(each.old, each.new)
            known, codes = functions(before), dict(codes_in(compile(after, file, "exec")))
            changed = [name for name, body in functions(after).items() if body != known.get(name)]
            assert changed, f"{self.id}: {file} differs in no function"
            for name in changed:
                patch.setattr(living(file, name), "__code__", codes[name])


def functions(text: str) -> dict[str, str]:
    """What the functions of a module and the methods of its classes do, by qualified name."""
    found = {}
    for node in ast.parse(text).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        within = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in members:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                found[within + each.name] = ast.dump(each)
    return found


def codes_in(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """The code objects of all functions, by qualified name."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each.co_qualname, each
            yield from codes_in(each)


def living(file: str, name: str) -> FunctionType:
    """The function of a module that has been imported: of a file, by qualified name."""
    found = importlib.import_module(".".join(Path(file).with_suffix("").parts[1:]))
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    function = getattr(found, "fget", getattr(found, "__func__", found))
    assert isinstance(function, FunctionType), f"{file}: {name}"
    return function


def load() -> tuple[Plant, ...]:
    found = []
    for path in sorted(BUGS.glob("*.toml")):
        for bug in tomllib.loads(path.read_text())["bug"]:
            first = {key: bug[key] for key in ("file", "old", "new")}
            edits = tuple(Edit(**each) for each in (first, *bug.get("also", ())))
            seed = bug.get("seed", 1)
            found.append(Plant(id=bug["id"], rule=bug["rule"], seed=seed, edits=edits))
    return tuple(found)


PLANTS = load()
