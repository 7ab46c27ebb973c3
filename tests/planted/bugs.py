"""The list of planted bugs: one small wrong edit of production code each, and who must notice.

The list is in TOML files beside this one, one for each program or part of one. An entry has

    id      its name, a few words
    file    the file of production code, from the repository's root
    old     text that occurs exactly once in that file
    new     what stands there instead: valid Python that does the wrong thing
    breaks  what no longer holds: a rule of docs/protocol.md, or a reason in words
    tests   files or tests (file::test) of which at least one must fail

Name narrow tests: the runner runs them all for each bug, and stops at the first that fails.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One entry of the list."""

    id: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def planted_in(self, text: str) -> str:
        """The file's text with the bug; ValueError when the text has moved on."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(
                f"{self.id}: its old text occurs {count} times in {self.file}: change the entry"
            )
        planted = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            compile(planted, self.file, "exec")
        return planted


def lists() -> list[Path]:
    """The files of the list."""
    return sorted(FOLDER.glob("*.toml"))


def load(paths: list[Path] | None = None) -> list[Bug]:
    """All bugs of these files, or of all."""
    found = []
    for path in lists() if paths is None else paths:
        for fields in tomllib.loads(path.read_text())["bug"]:
            found.append(Bug(**{**fields, "tests": tuple(fields["tests"])}))
    return found


def missing_tests(bug: Bug, root: Path) -> list[str]:
    """Those of its tests that do not exist."""
    missing = []
    for test in bug.tests:
        name, _, function = test.partition("::")
        path, function = root / name, function.partition("[")[0]
        known = path.is_file() and (
            not function or re.search(rf"def {re.escape(function)}\(", path.read_text())
        )
        if not known and not (path.is_dir() and not function):
            missing.append(test)
    return missing
