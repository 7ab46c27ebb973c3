"""Make docs/numbers.md: the results from which the documents take their measured figures.

In tests/: python -m bench.numbers

A number of a page is a value of a result where its section of the page links to it
(`numbers.md#NAME`). Of a row with several values all stand in the text, in its order: least and
most, the cells of a line.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.results import Figure, Result, read

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/numbers.md"
HEAD: Final = """# Measurements

Made by `python -m bench.numbers` from [tests/bench/results](../tests/bench/results); do not edit.

A section of a page that links to a result has values of its file, as rounded; a test looks for \
them. The file has the command (to be run in `tests/`; `--json FILE` writes it), machine, load, \
date, commit and remarks. What may be concluded is in [replication.md](replication.md).

| result | date | used in |
|---|---|---|
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


def claims(words: str, results: Mapping[str, Result]) -> dict[str, list[Figure]]:
    """Return the rows of results that a page has, by the results' names."""
    rows: dict[str, list[Figure]] = {}
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
            rest = rest[longest or 1 :]
    return rows


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
    """Return the whole page."""
    pages = (ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {PAGE}))
    claimed = {each.name: claims(each.read_text(), results) for each in pages}
    return HEAD + "".join(row(name, result, claimed) for name, result in results.items())


def row(name: str, result: Result, claimed: Mapping[str, Mapping[str, Sequence[Figure]]]) -> str:
    """Return one result: its file, its date, and the pages that claim it."""
    file = f'<a id="{name}"></a>[{name}](../tests/bench/results/{name}.json)'
    links = ", ".join(
        f"[{page.removesuffix('.md')}]({'../' * (page == 'README.md')}{page})"
        for page, names in claimed.items()
        if name in names
    )
    return f"| {file} | {result.date} | {links} |\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(read()))


if __name__ == "__main__":
    main()
