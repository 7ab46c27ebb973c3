"""The CustomResourceDefinition, made from the models: `python -m atoll_operator.api.crd`.

pydantic writes a JSON schema of `Spec` and `Status`; this module turns it into what the API server
calls a structural schema (no references, no unions), and adds what JSON schema cannot say: list
maps, the rules in CEL, and the columns of `kubectl get`.
"""

import sys
from collections.abc import Mapping
from typing import Any

import yaml

from atoll_operator.api import pods, presets, rules
from atoll_operator.api.model import COUNT_MAX, SECONDS_MAX
from atoll_operator.api.spec import API_VERSION, KIND, Spec
from atoll_operator.api.status import Status

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "decoupledtrainingjobs"
OPEN = tuple(each.__name__ for each in pods.Open.__subclasses__())  # the cluster's to check
NULL = {"type": "null"}
UNLIMITED = (COUNT_MAX, SECONDS_MAX)  # limits of the format, not of the job
MAPS = {"regions": ["name"], "conditions": ["type"], "metrics": ["name"]}
# Of a status; those of a condition are metav1.Condition's.
REQUIRED = {"conditions": ["type", "status", "lastTransitionTime", "reason", "message"]}


def definition() -> dict[str, Any]:
    """The whole object; the file in crds/ is its text."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["dtj"],
                "categories": ["all", "atoll"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns(),
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def columns() -> list[dict[str, Any]]:
    """What `kubectl get dtj` shows."""
    state = '.status.conditions[?(@.type=="Ready")].reason'
    shown = (
        ("State", "string", state, "the reason of the condition Ready"),
        ("Learners", "string", ".status.columns.learners", "in training / asked for"),
        ("Step", "integer", ".status.progress.step", "the job's step (tick)"),
        ("Progress", "string", ".status.columns.progress", "of spec.steps or spec.tokens"),
        ("Loss", "string", ".status.progress.loss", "mean over the learners"),
        ("Syncer", "string", ".status.columns.syncer", "shards that serve / shards"),
        ("Age", "date", ".metadata.creationTimestamp", ""),
    )
    return [
        {"name": name, "type": kind, "jsonPath": path, **({"description": text} if text else {})}
        for name, kind, path, text in shown
    ]


def spec_schema() -> dict[str, Any]:
    """The structural schema of `spec` with every default, also those that a preset changes."""
    document = Spec.model_json_schema(by_alias=True)
    found: dict[str, Any] = _structural(document, document.get("$defs", {}))
    return found


def schema() -> dict[str, Any]:
    """The structural schema of one job, with its rules."""
    spec = spec_schema()
    _explain(spec["properties"])
    for path in presets.fields():  # what is not given is the preset's
        node = spec["properties"]["sync"]
        for name in path.split("."):
            node = node["properties"][name]
            node.pop("default", None)
    _without_defaults_in_lists(spec)
    spec["properties"]["managedBy"]["nullable"] = True
    spec["x-kubernetes-validations"] = [
        *(_rule(rule) for rule in rules.RULES if not rule.of_object),
        *(
            {"rule": each.cel, "message": each.text, "fieldPath": each.field.removeprefix("spec")}
            for each in rules.FIXED
        ),
    ]
    return {
        "type": "object",
        "description": (
            "Trains one model on learners in several regions, which train on their own and merge"
            " their work as they go."
        ),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status_schema(),
        },
        "x-kubernetes-validations": [_rule(rule) for rule in rules.RULES if rule.of_object],
    }


def _without_defaults_in_lists(node: dict[str, Any], *, inside: bool = False) -> None:
    """Take the defaults out of lists' items: the models fill them in when an object is read.

    What the API server adds to an entry of a list is a difference for tools that compare lists as
    a whole with what was applied (Argo CD, Terraform); a field that it adds to an object is not.
    """
    if inside:
        node.pop("default", None)
    for inner in node.get("properties", {}).values():
        _without_defaults_in_lists(inner, inside=inside)
    if "items" in node:
        _without_defaults_in_lists(node["items"], inside=True)


def _rule(rule: rules.Rule) -> dict[str, Any]:
    said = f"{rule.problem}; {rule.remedy}"
    if rule.of_object:  # no path leads to metadata
        return {"rule": rule.cel, "message": f"{rule.field}: {said}"}
    return {"rule": rule.cel, "message": said, "fieldPath": rule.field.removeprefix("spec")}


def _explain(properties: dict[str, Any], path: str = "") -> None:
    """Add default and range to the description of every field that has one value.

    `kubectl explain` shows descriptions, but neither defaults nor ranges.
    """
    for name, node in properties.items():
        inner = node.get("items", node).get("properties")
        if inner is not None:
            _explain(inner, f"{path}{name}.")
        said = [node.get("description", ""), default_text(path + name, node), range_text(node)]
        node["description"] = " ".join(part for part in said if part)


def default_text(path: str, node: Mapping[str, Any]) -> str:
    """`Default: 2; with DiLoCo 0.`; empty where nothing is filled in. `path` is below `spec`."""
    value = node.get("default")
    if value is None or value in ("", [], {}):
        return ""
    by_preset = presets.values(path.removeprefix("sync.")) if path.startswith("sync.") else {}
    others = "".join(f"; with {name} {_plain_text(other)}" for name, other in by_preset.items())
    return f"Default: {_plain_text(value)}{others}."


def range_text(node: Mapping[str, Any]) -> str:
    """`From 1 to 64.`; empty where only the number's format is a limit."""
    low, high = node.get("minimum"), node.get("maximum")
    if high is None or high in UNLIMITED:
        return f"At least {low}." if low else ""
    return f"From {low} to {high}."


def _plain_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _structural(node: dict[str, Any], definitions: dict[str, Any], name: str = "") -> Any:
    """pydantic's JSON schema -> a structural schema (no $ref, no null unions, no titles)."""
    node = {key: value for key, value in node.items() if key != "$defs"}
    reference = node.pop("$ref", None)
    if reference is not None:
        kind = reference.rpartition("/")[2]
        inner = _structural(definitions[kind], definitions, name)
        if node.get("default") is not None:
            inner["default"] = {} if isinstance(node["default"], dict) else node["default"]
        if "description" in node:  # what the field means here, not what its type is
            inner["description"] = node["description"]
        return inner
    options = [each for each in node.pop("anyOf", []) if each.get("type") != "null"]
    if options:
        (option,) = options
        return _structural({**option, **node}, definitions, name)
    title = node.pop("title", "")
    if title in OPEN:
        kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        keys = node.get("required", [])  # by which lists are merged
        if keys:
            told = {key: node["properties"][key]["description"] for key in keys}
            fields = {key: {"type": "string", "description": said} for key, said in told.items()}
            kept |= {"required": keys, "properties": fields}
        return kept
    if node.get("default") is None:
        node.pop("default", None)
    extra = node.pop("additionalProperties", None)
    if node.get("type") == "object" and "properties" not in node:
        if isinstance(extra, dict):
            node["additionalProperties"] = {"maxLength": 253, **_structural(extra, definitions)}
        else:
            node["x-kubernetes-preserve-unknown-fields"] = True
    if "properties" in node:
        node["properties"] = {
            key: _structural(value, definitions, key) for key, value in node["properties"].items()
        }
    if "items" in node:
        nullable = NULL in node["items"].get("anyOf", [])
        node["items"] = _structural(node["items"], definitions)
        if nullable:
            node["items"]["nullable"] = True
        if name in MAPS:
            node |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": MAPS[name]}
    if node.get("type") == "integer":
        node["format"] = "int64"
    return node


def status_schema() -> dict[str, Any]:
    """The structural schema of what the operator writes."""
    document = Status.model_json_schema(by_alias=True)
    found: dict[str, Any] = _structural(document, document.get("$defs", {}))
    _loosen(found)
    return found


def _loosen(node: dict[str, Any], name: str = "") -> None:
    """No defaults, and nothing is required but REQUIRED and the keys of list maps.

    Only the operator writes a status, and an object may hold what an older operator has written.
    """
    keys = node.get("x-kubernetes-list-map-keys")
    items = node.get("items")
    node.pop("default", None)
    node.pop("required", None)
    for key, inner in node.get("properties", {}).items():
        _loosen(inner, key)
    if items is not None:
        _loosen(items)
        if keys:
            items["required"] = REQUIRED.get(name, list(keys))


class Plain(yaml.SafeDumper):
    """No anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        return True


def text() -> str:
    """The file's content."""
    head = "# Made by `python -m atoll_operator.api.crd`; do not edit.\n"
    return head + yaml.dump(definition(), Dumper=Plain, sort_keys=False, width=100)


if __name__ == "__main__":
    sys.stdout.write(text())
