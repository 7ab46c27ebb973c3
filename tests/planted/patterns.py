"""Find a piece of Python by what it is, not by where it stands, and put another in its place.

A scope is a folder or file of the tree, a colon, and a qualified name. `syncer:Journal.append` is
the method of the class `Journal` in whatever file under `syncer/` has it, `worker:main.stop` a
function inside a function, `syncer:Journal` all of a class, `syncer:BEAT_SECONDS` the assignment to
a name at the top of a module, and `syncer:` all that modules do outside functions and classes. A
longer path is needed only where several modules have such a name and the pattern fits in each.

A pattern is Python. An expression fits every equal expression of the scope, and statements fit
equal ones that follow each other. `name=value` fits a keyword argument, too, so that a pattern need
not repeat a whole call. Equal are pieces with the same syntax tree: line breaks, quotes,
comments and parentheses do not count. Without a pattern the value of an assignment is meant.

The replacement goes into the source text where the piece stands, and all else stays as it is.
"""

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# A replacement of another kind is put in parentheses, so that its neighbours do not divide it.
ATOMS: tuple[type[ast.expr], ...] = (
    *(ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.Starred, ast.JoinedStr),
    *(ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp),
)
BODIES = ("body", "orelse", "finalbody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An expression or keyword argument of a file, or statements that follow each other."""

    path: Path
    nodes: Sequence[ast.expr] | Sequence[ast.stmt] | Sequence[ast.keyword]

    @property
    def start(self) -> tuple[int, int]:
        """Return its line and column."""
        return self.nodes[0].lineno, self.nodes[0].col_offset

    def replaced_by(self, becomes: str, text: str = "") -> str:
        """Return the file's text with something else here; statements leave at least `pass`.

        `text` is that of the file after other changes, all of which are further down.
        """
        first, last = self.nodes[0], self.nodes[-1]
        lines = (text or source(self.path)).split("\n")
        line = min([first.lineno, *(node.lineno for node in getattr(first, "decorator_list", []))])
        assert last.end_lineno is not None
        before = [*lines[: line - 1], _cut(lines[line - 1], None, first.col_offset)]
        after = [_cut(lines[last.end_lineno - 1], last.end_col_offset, None)]
        after += lines[last.end_lineno :]
        if isinstance(first, ast.keyword) and not becomes:
            comma = after[0].startswith(",")  # else it is the last one
            text, after[0] = "", after[0].removeprefix(",").lstrip()
            before = before if comma else "\n".join(before).rstrip(", \n").split("\n")
        elif isinstance(first, ast.keyword):
            text = becomes
        elif isinstance(first, ast.stmt):
            text = textwrap.indent(becomes.strip() or "pass", " " * first.col_offset).lstrip()
        else:
            (statement,) = ast.parse(becomes).body
            is_atom = isinstance(statement, ast.Expr) and isinstance(statement.value, ATOMS)
            has_own = isinstance(first, ast.GeneratorExp)  # the parentheses of a call are its own
            text = becomes if is_atom and not has_own else f"({becomes})"
        return "\n".join(before) + text + "\n".join(after)


def _cut(line: str, start: int | None, end: int | None) -> str:
    """Cut a line at columns of a syntax tree, which counts bytes."""
    return line.encode()[start:end].decode()


@cache
def source(path: Path) -> str:
    """Read a file, once."""
    return path.read_text()


@cache
def shape(node: ast.AST) -> str:
    """Write what is equal of two equal nodes, whether they are read, assigned or deleted."""
    return ast.dump(node).replace("ctx=Store()", "ctx=Load()").replace("ctx=Del()", "ctx=Load()")


@cache
def files(place: Path) -> tuple[Path, ...]:
    """List the Python files of a folder, or the file itself."""
    return (place,) if place.is_file() else tuple(sorted(place.rglob("*.py")))


def targets(statement: ast.stmt) -> list[str]:
    """List the names to which a statement assigns a value."""
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


@cache
def definitions(path: Path) -> dict[str, list[ast.Module]]:
    """Return the scopes of a file by qualified name, each as a module that has nothing else."""
    module = ast.parse(source(path))
    outside = [statement for statement in module.body if not isinstance(statement, DEFINITIONS)]
    by_name = {"": [ast.Module(outside, [])]}
    for statement in outside:
        for name in targets(statement):
            by_name.setdefault(name, []).append(ast.Module([statement], []))

    def descend(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, DEFINITIONS):
                scope = ast.Module([child], [])
                by_name.setdefault(prefix + child.name, []).append(scope)
                descend(child, f"{prefix}{child.name}.")
            elif not isinstance(child, ast.expr):
                descend(child, prefix)

    descend(module, "")
    return by_name


def pieces(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a scope, but none inside an f-string: Python 3.11 misplaces those."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from pieces(child)


def find(root: Path, scope: str, pattern: str, becomes: str) -> list[Match]:
    """List the places that a pattern fits, in the order of files and lines.

    A pattern that is an expression stands for one only where another expression replaces it.
    """
    place, _, name = scope.partition(":")
    modules = [
        (path, module)
        for path in files(root / place)
        if name.rpartition(".")[2] in source(path)
        for module in definitions(path).get(name, [])
    ]
    if not pattern:
        values = [(path, getattr(module.body[0], "value", None)) for path, module in modules]
        return [Match(path=path, nodes=[value]) for path, value in values if value]
    wanted, replacement = ast.parse(pattern).body, ast.parse(becomes).body
    fits = expressions if is_expression(wanted) and is_expression(replacement) else statements
    return [
        Match(path=path, nodes=nodes)
        for path, module in modules
        for piece in pieces(module)
        for nodes in (*fits(piece, wanted), *keywords(piece, wanted))
    ]


def find_one(root: Path, scope: str, pattern: str, becomes: str, nth: int) -> Match:
    """Return the only place, or the `nth` from 1 on; ValueError when the text has moved on."""
    places = find(root, scope, pattern, becomes)
    if len(places) != 1 and not 0 < nth <= len(places):
        raise ValueError(f"{pattern!r} fits {len(places)} places of {scope}")
    return places[max(nth, 1) - 1]


def is_expression(body: Sequence[ast.stmt]) -> bool:
    """Is it one expression and nothing else?"""
    return len(body) == 1 and isinstance(body[0], ast.Expr)


def expressions(piece: ast.AST, wanted: Sequence[ast.stmt]) -> Iterator[list[ast.expr]]:
    """Yield the piece if it is the expression."""
    assert isinstance(wanted[0], ast.Expr)
    value = wanted[0].value
    if type(piece) is type(value) and shape(piece) == shape(value):
        assert isinstance(piece, ast.expr)
        yield [piece]


def keywords(piece: ast.AST, wanted: Sequence[ast.stmt]) -> Iterator[list[ast.keyword]]:
    """Yield the piece if it is the keyword argument that stands there as an assignment."""
    statement = wanted[0] if len(wanted) == 1 else None
    if not isinstance(piece, ast.keyword) or not isinstance(statement, ast.Assign):
        return
    if targets(statement) == [piece.arg] and shape(statement.value) == shape(piece.value):
        yield [piece]


def statements(piece: ast.AST, wanted: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield the statements, where they are in a body of the piece."""
    for body in (getattr(piece, name, None) for name in BODIES):
        if not isinstance(body, list):
            continue
        for start in range(len(body) - len(wanted) + 1):
            run = body[start : start + len(wanted)]
            if type(run[0]) is type(wanted[0]) and [*map(shape, run)] == [*map(shape, wanted)]:
                yield run
