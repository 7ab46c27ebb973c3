"""Make docs/numbers.md: every measured figure of the documents, and where it comes from.

In tests/: python -m bench.numbers
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.results import Figure, Result, read

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/numbers.md"
LINK: Final = re.compile(r"\((?:docs/)?numbers\.md#([\w-]+)\)")
HEAD: Final = """# Measured figures

Made by `python -m bench.numbers` from `tests/bench/results`; do not edit.

Every figure that the README and these pages claim, the command that measures it (in `tests/`), \
the machine, the load and the date. `--json FILE` of a benchmark writes a file of that folder.
"""


def claims() -> Iterator[tuple[str, str]]:
    """The section of a result, and a page that links to it."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for name in LINK.findall(page.read_text() if page != PAGE else ""):
            yield name, page.name


def page(results: dict[str, Result]) -> str:
    """The whole page."""
    pages: dict[str, dict[str, None]] = {}
    for name, claimed in claims():
        pages.setdefault(name, {})[claimed] = None
    return "\n".join([HEAD, *(section(n, each, [*pages[n]]) for n, each in results.items())])


def section(name: str, result: Result, pages: list[str]) -> str:
    """One result; of several values a row of a table has them in the order of the document."""
    command = f"`{result.command}`" if result.command else "No command"
    load = result.load and f"load {result.load}"
    commit = result.commit and f"commit {result.commit}"
    facts = ", ".join(filter(None, (command, result.machine, load, result.date, commit)))
    links = ", ".join(f"[{each}]({'../' * (each == 'README.md')}{each})" for each in pages)
    about = f" {result.about}" if result.about else ""
    rows = "".join(f"| {each.what} | {shown(each)} |\n" for each in result.figures)
    return f"## {name}\n\n{facts}.{about} Used in {links}.\n\n| figure | |\n|---|---|\n{rows}"


def shown(figure: Figure) -> str:
    """Its values, and the unit once."""
    return f"{', '.join(map(value, figure.values))} {figure.unit}".strip()


def value(number: float) -> str:
    """With four digits."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(read()))


if __name__ == "__main__":
    main()
