"""The table of the chart's values in its README, and the descriptions in its schema.

Both are made of the comments in values.yaml; run this file to renew them. A test compares them. A
key with a comment is a value; a key without one is a group, whose keys have theirs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm/atoll"
VALUES, SCHEMA, README = CHART / "values.yaml", CHART / "values.schema.json", CHART / "README.md"
PLACE = re.compile(r"(<!-- made: values -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LINE = re.compile(r"^( *)(?:# (?P<comment>.*)|(?P<key>\w+):.*)?$")


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the chart: where it stands, its default, and what it means."""

    path: tuple[str, ...]
    default: Any
    meaning: str


def values(text: str) -> Iterator[Value]:
    """Yield the values in their order; raises AssertionError for a key that nobody explains."""
    whole = yaml.safe_load(text)
    path: list[str] = []
    above = ""
    within: int | None = None  # the indent of a value whose own keys follow
    for line in text.splitlines():
        found = LINE.match(line)
        if found is None or not line.strip():
            above = ""
            continue
        indent = len(found[1])
        if within is not None and indent > within:
            continue
        within = None
        if found["comment"] is not None:
            above = found["comment"]
            continue
        path[indent // 2 :] = [found["key"]]
        default = _at(whole, path)
        if above:
            yield Value(tuple(path), default, above)
            within = indent
        else:
            assert isinstance(default, dict), f"{'.'.join(path)} has no comment in values.yaml"
            assert default, f"{'.'.join(path)} has no comment in values.yaml"
        above = ""


def _at(whole: Mapping[str, Any], path: list[str]) -> Any:
    found: Any = whole
    for key in path:
        found = found[key]
    return found


def table(text: str) -> str:
    """Return the table of the README."""
    rows = [
        (f"`{'.'.join(each.path)}`", f"`{json.dumps(each.default)}`", each.meaning)
        for each in values(text)
    ]
    lines = [("value", "default", "meaning"), ("---", "---", "---"), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def described(schema: str, text: str) -> str:
    """Return the schema with the descriptions of values.yaml."""
    whole = json.loads(schema)
    for each in values(text):
        part = whole
        for key in each.path:
            part = part["properties"][key]
        others = {key: value for key, value in part.items() if key != "description"}
        part.clear()
        part |= {"description": each.meaning} | others
    return json.dumps(whole, indent=2) + "\n"


def renewed(readme: str, text: str) -> str:
    """Return the README with its table as values.yaml has it now."""
    return PLACE.sub(lambda place: place[1] + table(text) + place[3], readme)


if __name__ == "__main__":
    comments = VALUES.read_text()
    README.write_text(renewed(README.read_text(), comments))
    SCHEMA.write_text(described(SCHEMA.read_text(), comments))
