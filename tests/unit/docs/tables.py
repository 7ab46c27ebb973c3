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
from atoll_operator.api.job import field_rules, sync_fields
from atoll_operator.api.job.spec import API_VERSION, KIND
from atoll_operator.api.status import reasons
from atoll_operator.kube.metrics import Metrics as OperatorMetrics
from atoll_protos.environment import VARIABLES, VariableReader
from atoll_protos.exits import EXITS
from atoll_syncer.duties.metrics import ShardMetrics

ROOT = Path(__file__).resolve().parents[3]
SPEC = ROOT / "docs/spec.md"
PAGES = (ROOT / "docs/conditions.md", ROOT / "docs/reference.md")
PLACE = re.compile(r"(<!-- made: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Rows = Iterator[Sequence[str]]


def _cell(content: str) -> str:
    return content.replace("|", "\\|").replace("\n", " ")


def conditions_list() -> str:
    """Return a list for each condition; a reason that an earlier one has is only named."""
    parts = []
    first: dict[tuple[str, ...], str] = {}
    for kind, group in groupby(reasons.REASONS, key=lambda reason: reason.type):
        lines, again = [f"### {kind}\n"], []
        for reason in group:
            name = f"{reason.status} `{reason.reason}`"
            before = first.setdefault((reason.reason, reason.meaning, reason.remedy), kind)
            if before == kind:
                remedy = f". *Remedy:* {reason.remedy}" if reason.remedy else ""
                lines.append(f"- {name}: {reason.meaning}{remedy}")
            else:
                again.append(f"{name} (`{before}`)")
        if again:
            lines.append(f"- As above: {', '.join(again)}")
        parts.append("\n".join(lines) + "\n")
    return "\n" + "\n".join(parts) + "\n"


def exit_codes() -> str:
    """Return what each exit code means."""
    rows = (
        (str(each.code.value), f"`{each.code.name}`", each.meaning, each.reason, each.remedy)
        for each in EXITS.values()
    )
    return table(("code", "name", "meaning", "reason of `Failed`", "remedy"), [*rows])


def variables(*roles: VariableReader) -> str:
    """Return the variables of processes with these roles; the chart's values are in its README."""
    internal = "chart" if roles == (VariableReader.OPERATOR,) else "nothing"
    lines = []
    for variable in VARIABLES:
        if {*roles} & {*variable.roles} and internal not in variable.set_by:
            default = variable.default and f"default `{variable.default}`"
            value = "required" if variable.default is None else default
            facts = (", ".join(variable.roles), f"set by {variable.set_by}", value)
            about = "; ".join(filter(None, facts))
            lines.append(f"- `{variable.name}` ({about}): {variable.meaning}\n")
    return "".join(lines)


def metrics() -> str:
    """Return every metric as it is scraped."""
    shard, operator = ShardMetrics(CollectorRegistry()), OperatorMetrics()
    rows = *of(shard), *of(operator)
    return "".join(f"- {name} ({kind}). {about}\n" for name, kind, about in rows)


def of(program: object) -> Rows:
    """Yield the metrics of one program."""
    for metric in vars(program).values():
        if isinstance(metric, MetricWrapperBase):
            total = "_total" if isinstance(metric, Counter) else ""
            labels = f"{{{','.join(metric._labelnames)}}}" if metric._labelnames else ""
            yield f"`{metric._name}{total}{labels}`", str(metric._type), metric._documentation


TABLES: dict[str, Callable[[], str]] = {
    "conditions": conditions_list,
    "exit-codes": exit_codes,
    "metrics": metrics,
    "variables-of-a-job": lambda: variables(
        VariableReader.LEARNER, VariableReader.EVALUATOR, VariableReader.COMMAND
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
`kubectl explain dtj.spec` shows the same, and `atoll validate FILE` checks a manifest without a
cluster. [examples/](../examples) has whole manifests.

A *step* of the job is one tick of its [clock](concepts.md#tick-and-step). Numbers that are not
whole are strings in quotes.

An update of a field with a star is refused, so start another job. The API server and
`atoll validate` also check conditions over several fields, and name the remedy.
"""


def spec_page() -> str:
    """Return docs/spec.md, made from the models."""
    spec, status = crd.spec_schema(), crd.status_schema()
    of_spec = [_section(*each) for each in objects("spec", spec)]
    return "\n".join([HEAD, *of_spec, _presets(), _status(status)])


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


def _section(path: str, node: Node) -> str:
    required = node.get("required", ())
    fields = [
        _field(path, name, inner, name in required) for name, inner in node["properties"].items()
    ]
    told = "." in path and not path.endswith("[]")  # the field that links here has it
    about = "" if told else f"{node['description']}\n\n"
    return f"## {path}\n\n{about}{''.join(fields)}"


def _field(path: str, name: str, node: Node, required: bool) -> str:
    below = f"{path}.{name}".removeprefix("spec.")
    default = "required" if required else crd.default_text(below, node).removesuffix(".")
    default = default.replace("Default:", "default")
    kind = _type(f"{path}.{name}", node), crd.range_text(node).lower().removesuffix(".")
    star = "*" if _is_fixed(below) else ""
    about = "; ".join(filter(None, (", ".join(filter(None, kind)), default)))
    return f"- `{name}`{star} ({about}). {node['description']}\n"


def _status(status: Node) -> str:
    """Return one list for the status; a condition has the fields that all have in Kubernetes."""
    fields = [
        f"- `{path}.{name}` ({_kind(inner)}). {inner['description']}\n".replace("`status.", "`")
        for path, node in objects("status", status)
        if path != "status.conditions[]"
        for name, inner in node["properties"].items()
    ]
    return f"## status\n\n{status['description']}\n\n{''.join(fields)}"


def _kind(node: Node) -> str:
    if "items" in node:
        return f"list of {_kind(node['items'])}"
    return "object" if "properties" in node else _type("", node)


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
    for name, each in sync_fields.PRESETS.items():
        settings = [f"`{field}: {_yaml(value)}`" for field, value in each.settings.items()]
        if each.waits:
            settings.append(f"`{sync_fields.QUORUM}`: {sync_fields.ALL}")
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


if __name__ == "__main__":
    SPEC.write_text(spec_page())
    for page in PAGES:
        page.write_text(renewed(page.read_text()))
