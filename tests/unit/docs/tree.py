"""The files of the repository, as the tests of the documents read them."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE_BLOCK = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def files(*patterns: str) -> list[Path]:
    """Return the files that match, in the repository and not ignored by it."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for line in listed.splitlines() if (path := ROOT / line).exists()]


def name(path: Path) -> str:
    """Return a path as a reader of the repository knows it."""
    return str(path.relative_to(ROOT))


def prose(document: Path) -> str:
    """Return the text of a document without its blocks and words of code."""
    return CODE_BLOCK.sub("", document.read_text())


def documents() -> list[Path]:
    """Return every page of Markdown."""
    return files("*.md")
