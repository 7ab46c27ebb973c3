"""The CustomResourceDefinition, made from the models: `python -m atoll_operator.api.crd`.

pydantic's JSON schema becomes what the API server calls a structural schema (no references, no
unions), with what JSON schema cannot say: list maps, rules in CEL, the columns of `kubectl get`.
"""

import sys
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from atoll_operator.api.job import field_rules, sync_fields
from atoll_operator.api.job.fields import COUNT_MAX, SECONDS_MAX, OpenObject
from atoll_operator.api.job.spec import API_VERSION, KIND, Spec
from atoll_operator.api.status.job_status import Status

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "decoupledtrainingjobs"
OPEN = [subclass.__name__ for subclass in OpenObject.__subclasses__()]  # the cluster's to check
NULL = {"type": "null"}
UNLIMITED = (COUNT_MAX, SECONDS_MAX)  # limits of the format, not of the job
MAPS = {"regions": ["name"], "conditions": ["type"], "metrics": ["name"]}
# Of a status; those of a condition are metav1.Condition's.
REQUIRED = {"conditions": ["type", "status", "lastTransitionTime", "reason", "message"]}


def definition() -> dict[str, Any]:
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
    """Return the structural schema of `spec` with every default, also those a preset changes."""
    found: dict[str, Any] = _schema_of(Spec)
    return found


def status_schema() -> dict[str, Any]:
    found: dict[str, Any] = _schema_of(Status)
    _loosen(found)
    return found


def _schema_of(model: type[BaseModel]) -> Any:
    document = model.model_json_schema(by_alias=True)
    return _structural(document, document.get("$defs", {}))


def schema() -> dict[str, Any]:
    spec = spec_schema()
    _explain(spec["properties"])
    for path in sync_fields.fields():  # what is not given is the preset's
        node = spec["properties"]["sync"]
        for name in path.split("."):
            node = node["properties"][name]
            node.pop("default", None)
    _without_defaults_in_lists(spec)
    spec["properties"]["managedBy"]["nullable"] = True
    spec["x-kubernetes-validations"] = [
        *(_rule(rule) for rule in field_rules.RULES if not rule.of_object),
        *({"rule": x.cel, "message": x.text, "fieldPath": f".{x.path}"} for x in field_rules.FIXED),
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
        "x-kubernetes-validations": [_rule(rule) for rule in field_rules.RULES if rule.of_object],
    }


def _without_defaults_in_lists(node: dict[str, Any], *, inside: bool = False) -> None:
    """Take the defaults out of lists' items; the models fill them in when an object is read.

    Tools that compare whole lists (Argo CD, Terraform) take what the API server adds for a change.
    """
    if inside:
        node.pop("default", None)
    for inner in node.get("properties", {}).values():
        _without_defaults_in_lists(inner, inside=inside)
    if "items" in node:
        _without_defaults_in_lists(node["items"], inside=True)


def _rule(rule: field_rules.Rule) -> dict[str, Any]:
    said = f"{rule.problem}; {rule.remedy}"
    if rule.of_object:  # no path leads to metadata
        return {"rule": rule.cel, "message": f"{rule.field}: {said}"}
    return {"rule": rule.cel, "message": said, "fieldPath": rule.field.removeprefix("spec")}


def _explain(properties: dict[str, Any], path: str = "") -> None:
    """Add default and range to descriptions: `kubectl explain` shows neither."""
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
    by_preset = sync_fields.values(path.removeprefix("sync.")) if path.startswith("sync.") else {}
    others = "".join(f"; with {name} {_plain_text(other)}" for name, other in by_preset.items())
    return f"Default: {_plain_text(value)}{others}."


def range_text(node: Mapping[str, Any]) -> str:
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
        if (default := node.pop("default", None)) is not None:
            inner["default"] = {} if isinstance(default, dict) else default
        return inner | node  # which has what the field means here, not what its type is
    for option in node.pop("anyOf", []):
        if option != NULL:
            return _structural({**option, **node}, definitions, name)
    if node.pop("title", "") in OPEN:
        return _open_object(node)
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


def _open_object(node: dict[str, Any]) -> dict[str, Any]:
    """Describe what the cluster checks: any field, and those that its lists are merged by."""
    kept: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if keys := node.get("required"):
        texts = {key: node["properties"][key]["description"] for key in keys}
        fields = {key: {"type": "string", "description": text} for key, text in texts.items()}
        kept |= {"required": keys, "properties": fields}
    return kept


def _loosen(node: dict[str, Any], name: str = "") -> None:
    """Only REQUIRED and list keys are required: an older operator may have written the object."""
    node.pop("default", None)
    node.pop("required", None)
    for key, inner in node.get("properties", {}).items():
        _loosen(inner, key)
    if "items" in node:
        _loosen(node["items"])
        if keys := node.get("x-kubernetes-list-map-keys"):
            node["items"]["required"] = REQUIRED.get(name, keys)


class Plain(yaml.SafeDumper):
    """No anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def text() -> str:
    head = "# Made by `python -m atoll_operator.api.crd`; do not edit.\n"
    return head + yaml.dump(definition(), Dumper=Plain, sort_keys=False, width=100)


if __name__ == "__main__":
    sys.stdout.write(text())
