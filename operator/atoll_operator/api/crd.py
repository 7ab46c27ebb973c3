"""The CustomResourceDefinition from the models: `python -m atoll_operator.api.crd`."""

import sys
from typing import Any

import yaml

from atoll_operator.api import presets, rules
from atoll_operator.api.spec import API_VERSION, COUNT_MAX, KIND, SECONDS_MAX, Spec

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "decoupledtrainingjobs"
OPEN = ("Template", "EnvVar")  # pods are the cluster's to check
UNLIMITED = (COUNT_MAX, SECONDS_MAX)  # limits of the format, not of the job
MAPS = {"regions": ["name"], "conditions": ["type"]}


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
    shown = (
        ("Learners", "string", ".status.columns.learners", "in training / asked for"),
        ("Step", "integer", ".status.progress.step", "the job's step"),
        ("Progress", "string", ".status.columns.progress", "of spec.steps or spec.tokens"),
        ("Loss", "string", ".status.progress.loss", "mean over the learners"),
        ("Syncer", "string", ".status.columns.syncer", "shards that serve / shards"),
        ("Age", "date", ".metadata.creationTimestamp", ""),
    )
    return [
        {"name": name, "type": kind, "jsonPath": path, **({"description": text} if text else {})}
        for name, kind, path, text in shown
    ]


def schema() -> dict[str, Any]:
    """The structural schema of one job, with its rules."""
    document = Spec.model_json_schema(by_alias=True)
    spec = _structural(document, document.get("$defs", {}))
    sync = spec["properties"]["sync"]
    _explain(spec["properties"])
    for name in presets.fields():  # what is not given is the preset's
        sync["properties"][name].pop("default", None)
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
        "description": "Trains one model on learners in several regions.",
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


def default_text(path: str, node: dict[str, Any]) -> str:
    """`Default: 2; with DiLoCo 0.`; empty where nothing is filled in. `path` is below `spec`."""
    value = node.get("default")
    if value is None or value in ("", [], {}):
        return ""
    by_preset = presets.values(path.removeprefix("sync.")) if path.startswith("sync.") else {}
    others = "".join(f"; with {name} {_plain_text(other)}" for name, other in by_preset.items())
    return f"Default: {_plain_text(value)}{others}."


def range_text(node: dict[str, Any]) -> str:
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
        if title == "EnvVar":
            named = {"type": "string", "description": node["properties"]["name"]["description"]}
            kept |= {"required": ["name"], "properties": {"name": named}}
        return kept
    if node.get("default") is None:
        node.pop("default", None)
    extra = node.pop("additionalProperties", None)
    if node.get("type") == "object" and "properties" not in node:
        if isinstance(extra, dict):
            node["additionalProperties"] = {**_structural(extra, definitions), "maxLength": 253}
        else:
            node["x-kubernetes-preserve-unknown-fields"] = True
    if "properties" in node:
        node["properties"] = {
            key: _structural(value, definitions, key) for key, value in node["properties"].items()
        }
    if "items" in node:
        node["items"] = _structural(node["items"], definitions)
        if name in MAPS:
            node |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": MAPS[name]}
    if node.get("type") == "integer":
        node["format"] = "int64"
    return node


def _fields(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _list(items: dict[str, Any], *, key: str | None = None) -> dict[str, Any]:
    kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {}
    return {"type": "array", "items": {**items, **({"required": [key]} if key else {})}, **kind}


def status_schema() -> dict[str, Any]:
    """What the operator writes."""
    text = {"type": "string"}
    number = {"type": "integer", "format": "int64"}
    time = {"type": "string", "format": "date-time"}
    condition = _fields(
        type={**text, "maxLength": 316},
        status={**text, "enum": ["True", "False", "Unknown"]},
        observedGeneration=number,
        lastTransitionTime=time,
        reason={**text, "maxLength": 1024},
        message={**text, "maxLength": 32768},
    )
    return _fields(
        observedGeneration=number,
        conditions=_list(condition, key="type"),
        run=text,
        startTime=time,
        completionTime=time,
        exportURL=text,
        learnersDesired=number,
        learnersLive=number,
        quorum=number,
        columns={
            **_fields(learners=text, progress=text, syncer=text),
            "description": "Texts for the columns of kubectl get.",
        },
        progress=_fields(
            step=number,
            tokens=number,
            loss={**text, "description": "A decimal number; the API conventions forbid floats."},
            progressPercentage=number,
            estimatedRemainingSeconds=number,
            metrics=_list(_fields(name=text, value=text), key="name"),
            lastUpdatedTime=time,
        ),
        regions=_list(
            _fields(
                name=text, learners=number, ready=number, live=number, lost=number, replaced=number
            ),
            key="name",
        ),
        syncer=_fields(
            shards=number,
            ready=number,
            epochs={"type": "array", "items": {**number, "nullable": True}},
        ),
    )


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
