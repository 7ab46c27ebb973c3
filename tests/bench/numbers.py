"""Make docs/numbers.md: every measured figure of the documents, and where it comes from.

In tests/: python -m bench.numbers

A figure is a number with a unit, or with a decimal point. It is measured where a result has it to
which its section of the page links (`numbers.md#NAME`). Of a row with several values all stand in
the text, in its order: least and most, the cells of a line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.results import Figure, Result, read

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/numbers.md"
HEAD: Final = """# Measured figures

Made by `python -m bench.numbers` from `tests/bench/results`; do not edit.

Every figure that the README and these pages claim, the command that measures it (in `tests/`), \
the machine, the load and the date. `--json FILE` of a benchmark writes a file of that folder. \
What was written by hand has the commit and the date at which a page had it.
"""
LINK: Final = re.compile(r"\((?:docs/)?numbers\.md#([\w-]+)\)")
FENCED: Final = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
NOT_TEXT: Final = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<[^>]*>|\b\d{4}\.\d{5}\b")  # the last: arXiv
UNITS: Final = (
    r"%|\$|(?:[kKMGT]i?B|[MG]bit)(?:/s)?|[mnµ]?s|min|h|nats|cores|points|seconds|minutes|hours"
    r"|rounds|passes|copies|cells|commits"
)
NUMBER: Final = re.compile(
    r"(?<![\w.-])(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?!\w|\.\d|-\w)"
    rf"(?:\s?({UNITS})(?!\w))?"
)
SHARES_UNIT: Final = re.compile(r",|/| to| and|, and| or| of| \(")  # with the next number


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a page: as it stands there, with the unit that it has or shares."""

    text: str
    unit: str

    @property
    def is_figure(self) -> bool:
        return bool(self.unit) or "." in self.text

    def __str__(self) -> str:
        return f"{self.text} {self.unit}".strip()

    def equals(self, value: float, unit: str) -> bool:
        """Whether it is this value, as rounded, and not in another unit.

        A share has its sign, and a whole number is a rounded value only in the row's own unit: else
        "M = 2" would be a loss of 2.245.
        """
        plain = self.text.replace(",", "")
        decimals = len(plain.partition(".")[2])
        right = self.unit == unit or (unit != "%" and not (self.unit and unit))
        rounds = decimals or (unit and self.unit) or value.is_integer()
        return bool(right and rounds) and f"{value:.{decimals}f}" == plain


@dataclass(frozen=True, slots=True)
class Claims:
    """What a page has: rows of results, by their names, and numbers that are in none."""

    rows: Mapping[str, Sequence[Figure]]
    others: Sequence[Number]


def claims(words: str, results: Mapping[str, Result]) -> Claims:
    """Read a page."""
    rows: dict[str, list[Figure]] = {}
    others: list[Number] = []
    for section in re.split(r"^(?=#+ )", FENCED.sub("", words), flags=re.MULTILINE):
        names = dict.fromkeys(LINK.findall(section))
        for name in names:
            rows.setdefault(name, [])
        rest = numbers(section)
        while rest:
            found = [(n, row) for n in names for row in results[n].figures if begins(rest, row)]
            longest = max((len(row.values) for _, row in found), default=0)
            for name, row in found:
                if len(row.values) == longest:
                    rows[name].append(row)
            others += [] if found else rest[:1]
            rest = rest[longest or 1 :]
    return Claims(rows=rows, others=others)


def numbers(words: str) -> list[Number]:
    """Those of a text, without code, links and tags; in a list the last one has the unit."""
    plain = NOT_TEXT.sub("X", words)
    found = [*NUMBER.finditer(plain)]
    units = [each[2] or "" for each in found]
    for at in reversed(range(len(found) - 1)):
        between = plain[found[at].end(1) : found[at + 1].start()].rstrip(" ")
        if not units[at] and SHARES_UNIT.fullmatch(between):
            units[at] = units[at + 1]
    return [Number(each[1], unit) for each, unit in zip(found, units, strict=True)]


def begins(found: Sequence[Number], row: Figure) -> bool:
    """Whether the first of the numbers are the values of a row."""
    pairs = zip(found, row.values, strict=False)
    return len(row.values) <= len(found) and all(a.equals(b, row.unit) for a, b in pairs)


def page(results: Mapping[str, Result]) -> str:
    """The whole page."""
    pages = (ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {PAGE}))
    claimed = {each.name: claims(each.read_text(), results).rows for each in pages}
    return "\n".join([HEAD, *(section(n, each, claimed) for n, each in results.items())])


def section(
    name: str, result: Result, claimed: Mapping[str, Mapping[str, Sequence[Figure]]]
) -> str:
    """One result: where it comes from, who claims it, and the rows that somebody claims."""
    command = f"`{result.command}`" if result.command else "No command"
    load = result.load and f"load {result.load}"
    commit = result.commit and f"commit {result.commit}"
    facts = ", ".join(filter(None, (command, result.machine, load, result.date, commit)))
    used = {page: each[name] for page, each in claimed.items() if name in each}
    links = ", ".join(f"[{page}]({'../' * (page == 'README.md')}{page})" for page in used)
    about = f" {result.about}" if result.about else ""
    rows = "".join(
        f"| {each.what} | {shown(each)} |\n"
        for each in result.figures
        if any(each in rows for rows in used.values())
    )
    return f"## {name}\n\n{facts}.{about} In {links}.\n\n| figure | |\n|---|---|\n{rows}"


def shown(figure: Figure) -> str:
    """Its values with four digits, and the unit once."""
    values: Iterator[str] = (
        f"{each:,.0f}" if abs(each) >= 1000 else f"{each:.4g}" for each in figure.values
    )
    return f"{', '.join(values)} {figure.unit}".strip()


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(read()))


if __name__ == "__main__":
    main()
