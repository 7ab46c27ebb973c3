"""What of the documents is made from the code; run this file to renew it.

docs/spec.md is made from the models as a whole. Another page has a table between
`<!-- made: NAME -->` and `<!-- end -->`. Tests compare them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics import MetricWrapperBase

from atoll_operator.api import crd
from atoll_operator.api.job import field_rules, presets
from atoll_operator.api.job.spec import API_VERSION, KIND
from atoll_operator.api.status import reasons
from atoll_operator.kube.metrics import Metrics as OperatorMetrics
from atoll_protos.environment import VARIABLES, VariableReader
from atoll_protos.exits import EXITS
from atoll_syncer.duties.metrics import ShardMetrics

ROOT = Path(__file__).resolve().parents[3]
SPEC = ROOT / "docs/spec.md"
PAGES = (ROOT / "docs/conditions.md", ROOT / "docs/operating.md")
PLACE = re.compile(r"(<!-- made: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Rows = Iterator[Sequence[str]]


def _cell(content: str) -> str:
    return content.replace("|", "\\|").replace("\n", " ")


def conditions_table() -> str:
    """Every condition, status and reason; what several have in the same words stands at one."""
    rows = []
    first: dict[tuple[str, ...], str] = {}
    for kind, given in groupby(reasons.REASONS, key=lambda each: each.type):
        name = f"`{kind}`"
        for each in given:
            before = first.setdefault((each.reason, each.meaning, each.remedy), kind)
            told = (each.meaning, each.remedy) if before == kind else (f"as at `{before}`", "")
            rows.append((name, f"{each.status} `{each.reason}`", *told))
            name = ""
    return table(("condition", "status and reason", "what it means", "remedy"), rows)


def exit_codes() -> str:
    """Return what each exit code means."""
    rows = (
        (str(each.code.value), f"`{each.code.name}`", each.meaning, each.reason, each.remedy)
        for each in EXITS.values()
    )
    return table(("code", "name", "meaning", "reason of `Failed`", "remedy"), [*rows])


def variables(*roles: VariableReader) -> str:
    """Return the environment variables of processes with these roles."""
    rows = (
        (
            f"`{each.name}`",
            each.meaning,
            "required" if each.default is None else each.default and f"`{each.default}`",
            *([", ".join(each.roles)] if len(roles) > 1 else []),
            each.set_by.replace("the ", ""),
        )
        for each in VARIABLES
        if {*roles} & {*each.roles}
    )
    read_by = ["read by"] if len(roles) > 1 else []
    return table(("variable", "meaning", "default", *read_by, "set by"), [*rows])


def metrics() -> str:
    """Return every metric as it is scraped."""
    shard, operator = ShardMetrics(CollectorRegistry()), OperatorMetrics()
    return table(("metric and labels", "type", "meaning"), [*of(shard), *of(operator)])


def of(program: object) -> Rows:
    """Yield the metrics of one program."""
    for metric in vars(program).values():
        if isinstance(metric, MetricWrapperBase):
            total = "_total" if isinstance(metric, Counter) else ""
            labels = f"{{{','.join(metric._labelnames)}}}" if metric._labelnames else ""
            yield f"`{metric._name}{total}{labels}`", str(metric._type), metric._documentation


TABLES: dict[str, Callable[[], str]] = {
    "conditions": conditions_table,
    "exit-codes": exit_codes,
    "metrics": metrics,
    "variables-of-a-job": lambda: variables(
        VariableReader.LEARNER,
        VariableReader.EVALUATOR,
        VariableReader.SHARD,
        VariableReader.COMMAND,
    ),
    "variables-of-the-operator": lambda: variables(VariableReader.OPERATOR),
}


def renewed(text: str) -> str:
    """Return a page with its tables as the code has them now."""
    return PLACE.sub(lambda place: place[1] + TABLES[place[2]]() + place[4], text)


# ---------------------------------------------------------------- docs/spec.md

Node = Mapping[str, Any]

HEAD = f"""# The manifest

Made by `python tests/unit/docs/tables.py`; do not edit.

Every field of the `spec` and the `status` of a `{KIND}` (`{API_VERSION}`).
`kubectl explain dtj.spec` shows the same descriptions, and `atoll validate FILE` checks a manifest
without a cluster. [examples/](../examples) has whole manifests.

A *step* of the job is one tick of the clock that all its learners share, see
[concepts.md](concepts.md). Numbers that are not whole are written as strings in quotes, because
the conventions of the Kubernetes API forbid floats.

An update of a field with a star is refused, so start another job.
"""


def spec_page() -> str:
    """Return docs/spec.md, made from the models."""
    spec, status = crd.spec_schema(), crd.status_schema()
    of_spec = [_section(*each, _spec_row, SPEC_COLUMNS) for each in objects("spec", spec)]
    of_status = [_section(*each, _status_row, STATUS_COLUMNS) for each in objects("status", status)]
    return "\n".join([HEAD, *of_spec, _presets(), _rules(), *of_status])


def objects(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Every object with named fields, outermost first; the path of a list's items ends in []."""
    yield path, node
    for name, inner in node["properties"].items():
        is_list = "items" in inner
        fields = inner["items"] if is_list else inner
        if "properties" in fields and not _open(fields):
            yield from objects(f"{path}.{name}{'[]' if is_list else ''}", fields)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown, with a newline at its end."""
    head, *lines = (" | ".join(_cell(each) for each in line) for line in (columns, *rows))
    return f"| {head} |\n|{'---|' * len(columns)}\n" + "".join(f"| {x} |\n" for x in lines)


SPEC_COLUMNS = ("field", "type", "default", "description")
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
    kind = _type(f"{path}.{name}", node), crd.range_text(node).lower().removesuffix(".")
    return (
        f"`{name}`{'*' if _is_fixed(below) else ''}",
        ", ".join(filter(None, kind)),
        default.removeprefix("Default: ").removesuffix("."),
        node["description"],
    )


def _status_row(path: str, name: str, node: Node, _: bool) -> tuple[str, ...]:
    return f"`{name}`", _type(f"{path}.{name}", node), node["description"]


def _type(path: str, node: Node) -> str:
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
    return bool(node.get("x-kubernetes-preserve-unknown-fields"))


def _is_fixed(path: str) -> bool:
    """Whether an update of a field below `spec` is refused; `path` may contain []."""
    plain = path.replace("[]", "")
    presence = f"has(self.{plain}) == has(oldSelf.{plain})"  # the value may change
    fixed = [each.path for each in field_rules.FIXED if each.cel != presence]
    return any(f"{plain}.".startswith(f"{each}.") for each in fixed)


def _presets() -> str:
    rows = []
    for name, each in presets.PRESETS.items():
        settings = [f"`{field}: {_yaml(value)}`" for field, value in each.settings.items()]
        if each.waits:
            settings.append(f"`{presets.QUORUM}`: {presets.ALL}")
        rows.append((f"`{name}`", ", ".join(settings)))
    head = (
        "## Presets\n\n`spec.sync.preset` fills the fields of `spec.sync` that are not given, also"
        " inside of one that is: with `wire: {up: bf16}`, `down` is the preset's.\n\n"
    )
    return head + table(("preset", "settings"), rows)


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rules() -> str:
    rows = [(f"`{rule.field}`", rule.problem) for rule in field_rules.RULES]
    head = (
        "## Rules\n\nConditions over several fields. The API server and `atoll validate` check"
        " them, and give the remedy. A region's name must be unique in the job.\n\n"
    )
    return head + table(("field", "rule"), rows)


if __name__ == "__main__":
    SPEC.write_text(spec_page())
    for page in PAGES:
        page.write_text(renewed(page.read_text()))
