"""Draw bugs that nobody has thought of, in files of which lines have changed.

cosmic-ray (requirements/mutation.txt) says what can be wrong where: another comparison, another
number, a condition turned round, a loop that does nothing. Its own runner is left out: it edits the
working tree and starts pytest anew for each bug. mutmut does not find the modules of this tree,
whose names begin below the folder of a program.

A drawn bug's tests are those of the planted bugs of its file, and the unit tests that import its
module. One that survives is no defect yet: it may change nothing that counts, or nothing at all.
"""

import difflib
import random
import re
import subprocess
from pathlib import Path

from planted.bugs import Bug
from planted.patterns import find

PROGRAMS = ("operator", "syncer", "worker", "protos")
# What any test notices (bits of a float, a number that is compared by `is`), what is an annotation
# (`int | None`), and what wants to know the names of variables.
LEFT_OUT = re.compile(
    r"Bit|Shift|Pow|Variable|Operator_(?!Is)\w+_Is|Operator_Is_(?!IsNot)|Operator_IsNot_(?!Is)"
)
Edit = tuple[str, int]  # an operator, and which of its places


def changed_files(root: Path, since: str) -> list[str]:
    """List the files of programs that commits since then have changed, no generated ones."""
    words = ["git", "log", f"--since={since}", "--name-only", "--pretty=", "--", *PROGRAMS]
    said = subprocess.run(words, cwd=root, check=True, capture_output=True, text=True).stdout
    names = {name for name in said.split() if name.endswith(".py") and not name.endswith("_pb2.py")}
    return sorted(name for name in names if (root / name).is_file())


def draw(root: Path, names: list[str], bugs: list[Bug], *, count: int, seed: int) -> list[Bug]:
    """Draw so many bugs, as many of each file; those of a file without tests are left out.

    A bug has all of its file's text as `old` and `new`.
    """
    chance = random.Random(seed)
    names = chance.sample(names, min(len(names), count))
    rows = {name: places(root / name) for name in names}
    for row in rows.values():
        chance.shuffle(row)
    named = {root / name: importing(root, name) for name in names}
    for bug in bugs:
        if bug.scope:
            (path,) = {match.path for match in find(root, bug.scope, bug.pattern, bug.becomes)}
            named.get(path, set()).update(bug.tests)
    drawn: list[Bug] = []
    while len(drawn) < count and any(rows.values()):
        for name in [name for name in names if rows[name]]:
            edit, tests = rows[name].pop(), tuple(sorted(named[root / name]))
            if len(drawn) < count and (edited_bug := edited(root, name, edit, tests)):
                drawn.append(edited_bug)
    return drawn


def places(path: Path) -> list[Edit]:
    """List all that cosmic-ray can do to a file."""
    from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415

    tree, found = get_ast(path.read_text()), []
    for name in operator_names():
        if not LEFT_OUT.search(name):
            operator = get_operator(name)()
            count = sum(1 for node in ast_nodes(tree) for _ in operator.mutation_positions(node))
            found += [(name, occurrence) for occurrence in range(count)]
    return found


def edited(root: Path, name: str, edit: Edit, tests: tuple[str, ...]) -> Bug | None:
    """Return a bug, or nothing where the edit gives no Python."""
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415
    from cosmic_ray.plugins import get_operator  # noqa: PLC0415

    (operator, occurrence), text = edit, (root / name).read_text()
    changed = mutate_code(text, get_operator(operator)(), occurrence)
    if not tests or changed is None or changed == text:
        return None
    try:
        compile(changed, name, "exec")
    except SyntaxError:
        return None
    lines = list(difflib.unified_diff(text.split("\n"), changed.split("\n"), n=0, lineterm=""))[2:]
    line = re.findall(r"\d+", lines[0])[0]
    return Bug(
        id=f"{name}:{line} {operator.removeprefix('core/')} {occurrence}",
        file=name,
        old=text,
        new=changed,
        breaks="\n" + "\n".join(lines[1:]),
        tests=tests,
    )


def importing(root: Path, name: str) -> set[str]:
    """Return the unit tests that import a file's module."""
    *packages, module = Path(name).with_suffix("").parts[1:]
    if module == "__init__":
        *packages, module = packages
    package = re.escape(".".join(packages))
    imports = re.compile(
        rf"^(from {package}\.{module} import|import {package}\.{module}\b"
        rf"|from {package} import (\([^)]*|.*)\b{module}\b)",
        re.MULTILINE,
    )
    tests = (root / "tests/unit").rglob("test_*.py")
    return {str(path.relative_to(root)) for path in tests if imports.search(path.read_text())}
