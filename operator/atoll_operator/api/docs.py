"""docs/spec.md and the table of conditions in docs/conditions.md, made from the models.

    python -m atoll_operator.api.docs > docs/spec.md

Everything comes from the structural schema (`crd.py`), the presets, the rules and the table of
reasons, so a field, preset or reason is described in one place only. Tests check that both files
are current; tests/unit/docs/tables.py puts the table of conditions into its page.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from atoll_operator.api import crd, presets, reasons, rules
from atoll_operator.api.spec import API_VERSION, KIND

Node = Mapping[str, Any]

HEAD = f"""# The manifest

Made by `python -m atoll_operator.api.docs`; do not edit.

Every field of the `spec` and the `status` of a `{KIND}` (`{API_VERSION}`).
`kubectl explain dtj.spec` shows the same descriptions, and `atoll validate FILE` checks a manifest
without a cluster. [examples/](../examples) has whole manifests.

A *step* of the job is one tick of the clock that all its learners share, see
[concepts.md](concepts.md). Numbers that are not whole are written as strings in quotes, because
the conventions of the Kubernetes API forbid floats.

In the column *changes*: *no* means that an update of the field is refused, so start another job.
"""


def text() -> str:
    """The content of docs/spec.md."""
    spec, status = crd.spec_schema(), crd.status_schema()
    parts = [
        HEAD,
        *(_section(path, node, _spec_row, SPEC_COLUMNS) for path, node in objects("spec", spec)),
        _presets(),
        _rules(),
        *(
            _section(path, node, _status_row, STATUS_COLUMNS)
            for path, node in objects("status", status)
        ),
    ]
    return "\n".join(parts)


def objects(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Every object with named fields, outermost first; the path of a list's items ends in []."""
    yield path, node
    for name, inner in node["properties"].items():
        is_list = "items" in inner
        fields = inner["items"] if is_list else inner
        if "properties" in fields and not _open(fields):
            yield from objects(f"{path}.{name}{'[]' if is_list else ''}", fields)


def conditions_table() -> str:
    """Every condition, status and reason, with meaning and remedy, as a table.

    What several conditions have in the same words is written at the first of them.
    """
    rows = []
    first: dict[tuple[str, ...], str] = {}
    for kind, given in groupby(reasons.REASONS, key=lambda each: each.type):
        for number, each in enumerate(given):
            name = f"`{kind}`" if number == 0 else ""
            before = first.setdefault((each.reason, each.meaning, each.remedy), kind)
            meaning, remedy = each.meaning, each.remedy
            if before != kind:
                meaning, remedy = f"as at `{before}`", ""
            rows.append((name, f"{each.status} `{each.reason}`", meaning, remedy))
    return table(("condition", "status and reason", "what it means", "remedy"), rows)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown, with a newline at its end."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(_cell(each) for each in line) + " |\n" for line in lines)


SPEC_COLUMNS = ("field", "type", "default", "range", "changes", "description")
STATUS_COLUMNS = ("field", "type", "description")


def _section(path: str, node: Node, row: Any, columns: Sequence[str]) -> str:
    required = node.get("required", ())
    rows = [row(path, name, inner, name in required) for name, inner in node["properties"].items()]
    told = "." in path and not path.endswith("[]")  # the row of the field that links here has it
    about = "" if told else f"{node['description']}\n\n"
    return f"## {path}\n\n{about}{table(columns, rows)}"


def _spec_row(path: str, name: str, node: Node, required: bool) -> tuple[str, ...]:
    below = f"{path}.{name}".removeprefix("spec.")
    default = "required" if required else crd.default_text(below, node)
    return (
        f"`{name}`",
        _type(f"{path}.{name}", node),
        default.removeprefix("Default: ").removesuffix("."),
        crd.range_text(node).lower().removesuffix("."),
        _changes(below),
        node["description"],
    )


def _status_row(path: str, name: str, node: Node, required: bool) -> tuple[str, ...]:
    del required
    return f"`{name}`", _type(f"{path}.{name}", node), node["description"]


def _type(path: str, node: Node) -> str:
    """The type of a field in words; an object with fields links to its section."""
    if "items" in node:
        return f"list of {_type(path + '[]', node['items'])}"
    if _open(node):
        return "object"
    if "properties" in node:
        anchor = "".join(letter for letter in path.lower() if letter.isalnum())
        return f"[object](#{anchor})"
    if "additionalProperties" in node:
        return "map of strings"
    if node.get("x-kubernetes-int-or-string"):
        return f"integer or `{node['pattern'].strip('^$')}`"
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    return "time" if node.get("format") == "date-time" else str(node["type"])


def _open(node: Node) -> bool:
    """Whether any field may stand in it, as in a pod template."""
    return bool(node.get("x-kubernetes-preserve-unknown-fields"))


def _changes(path: str) -> str:
    """Whether an update may change a field below `spec`; `path` may contain []."""
    plain = path.replace("[]", "")
    for each in rules.FIXED:
        if plain == each.path or plain.startswith(f"{each.path}."):
            return each.may
    return "yes"


def _presets() -> str:
    rows = []
    for name, each in presets.PRESETS.items():
        settings = [f"`{field}: {_yaml(value)}`" for field, value in each.settings.items()]
        if each.waits:
            settings.append(f"`{presets.QUORUM}`: {presets.ALL}")
        rows.append((f"`{name}`", each.about, ", ".join(settings)))
    head = (
        "## Presets\n\n`spec.sync.preset` fills the fields of `spec.sync` that are not given, also"
        " inside of one that is: with `wire: {up: bf16}`, `down` is the preset's.\n\n"
    )
    return head + table(("preset", "system", "settings"), rows)


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rules() -> str:
    rows = [(f"`{rule.field}`", rule.problem, rule.remedy) for rule in rules.RULES]
    head = (
        "## Rules\n\nConditions over several fields. The API server and `atoll validate` check"
        " them and use these words. A region's name must be unique in the job.\n\n"
    )
    return head + table(("field", "rule", "remedy"), rows)


def _cell(content: str) -> str:
    return content.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(text())
