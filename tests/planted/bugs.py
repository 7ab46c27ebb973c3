"""The list of planted bugs: one small wrong edit of production code each, and who must notice.

The list is in TOML files beside this one, one for each program or part of one. An entry has

    id       its name, a few words
    scope    the function, class or constant (`patterns` says how it is named)
    pattern  Python that occurs exactly once in it; without it the value of a constant
    becomes  Python that stands there instead and does the wrong thing; without it nothing
    nth      which of the places that the pattern fits is meant, from 1 on, where there are several
    holds    what no longer holds: `rule 12` or `rules 5 and 11` of docs/protocol.md, a page that
             promises it, or one of the promises below
    breaks   the reason in words, where `holds` and the name do not say it
    tests    files or tests (file::test) of which at least one must fail

What is not Python, and a docstring, has in place of scope and pattern

    file     the file, from the repository's root
    old      text that occurs exactly once in that file
    new      what stands there instead

Name narrow tests: the runner runs them all for each bug, and stops at the first that fails.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planted.patterns import find_one

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PROMISES = {
    "promise 1": "what is lost or changed stops no other learner; of a lost shard, only its share",
    "promise 2": "committed work is never lost, repeated or rolled back, nor a zombie's counted",
    "promise 3": "conditions, progress and quorum are what is seen, and Unknown what is not",
    "promise 4": "with an overlap the training thread never waits for the network",
    "promise 5": "bad input gets an error with the remedy; it corrupts nothing and kills nobody",
    "promise 6": "each identity has the least rights that work, and touches only its own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One entry of the list."""

    id: str
    holds: str = ""  # of a drawn bug nothing
    tests: tuple[str, ...]
    breaks: str = ""
    scope: str = ""
    pattern: str = ""
    becomes: str = ""
    nth: int = 0
    file: str = ""
    old: str = ""
    new: str = ""

    def planted_in(self, root: Path) -> tuple[str, str]:
        """Return a file's name and its text with the bug; ValueError when the text has moved on."""
        if self.scope:
            place = find_one(root, self.scope, self.pattern, self.becomes, self.nth)
            name, planted = str(place.path.relative_to(root)), place.replaced_by(self.becomes)
        else:
            name, text = self.file, (root / self.file).read_text()
            if (count := text.count(self.old)) != 1:
                raise ValueError(f"{self.id}: its old text occurs {count} times in {name}")
            planted = text.replace(self.old, self.new)
        if name.endswith(".py"):
            compile(planted, name, "exec")
        return name, planted


def lists() -> list[Path]:
    """Return the files of the list."""
    return sorted(FOLDER.glob("*.toml"))


def load(paths: list[Path] | None = None) -> list[Bug]:
    """Read all bugs of these files, or of all."""
    bugs = []
    for path in lists() if paths is None else paths:
        for fields in tomllib.loads(path.read_text())["bug"]:
            bugs.append(Bug(**{**fields, "tests": tuple(fields["tests"])}))
    return bugs


@cache
def rules(root: Path) -> set[str]:
    """Return the numbers of the rules that docs/protocol.md has."""
    return set(re.findall(r'id="rule-(\d+)"', (root / "docs/protocol.md").read_text()))


def is_held(bug: Bug, root: Path) -> bool:
    """Does what it breaks stand anywhere?"""
    numbers = re.fullmatch(r"rules? [\d, and]+", bug.holds) and re.findall(r"\d+", bug.holds)
    if numbers:
        return set(numbers) <= rules(root)
    page = bug.holds.startswith("docs/") and (root / bug.holds).is_file()
    return page or bug.holds in PROMISES


def missing_tests(bug: Bug, root: Path) -> list[str]:
    """Return those of its tests that do not exist."""
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
