"""What is obviously wrong in a pod template, for `atoll validate`: unknown fields and wrong kinds.

Templates are the cluster's to check, in its own version: before the operator makes anything it
lets the API server try every workload (docs/kubernetes.md). This is the check without a cluster.
The known fields are those of the Kubernetes client's models. It knows the API of one version, so
what it does not know is called unknown to that version.

Only what no version would take is refused: an unknown field, something else than a list or a
mapping where one must stand, a text where a number or true and false must stand. Quantities may
be written as numbers, so a number in place of a text is left to the cluster.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from atoll_operator.api.model import meant
from atoll_operator.api.pods import PodOverrides, Template
from atoll_operator.api.spec import Job
from atoll_protos.errors import SpecError

MODELS = "kubernetes.client.models"  # imported only where there is something to check: 0.4 s
PARTS = re.compile(r"(List|Dict)[\[(](?:str, )?(\w+)[\])]")  # List[V1Volume], Dict[str, str]
KINDS: Mapping[str, tuple[type, tuple[str, str]]] = {
    "int": (int, ("must be a whole number", "write it without quotes and decimals")),
    "bool": (bool, ("must be true or false", "write it without quotes")),
}
LIST = ("must be a list", "write it as a list")
MAPPING = ("must be a mapping", "give it named fields")
OVERRIDES = {  # fields of podOverrides that a pod template has under another name
    "containerSecurityContext": "V1SecurityContext",
    "labels": "Dict[str, str]",
    "annotations": "Dict[str, str]",
}


def check(job: Job) -> None:
    """Raise SpecError for the first thing that is wrong in the job's templates."""
    spec = job.spec
    templates = {"spec.learner.template": spec.learner.template}
    templates["spec.syncer.template"] = spec.syncer.template
    if spec.evaluator is not None:
        templates["spec.evaluator.template"] = spec.evaluator.template
    for path, each in templates.items():
        _raise_first(_of_template(each, path))
    for region in spec.regions:
        where = f"spec.regions[{region.name}].podOverrides"
        _raise_first(_of_overrides(region.pod_overrides, where))


def _raise_first(found: Iterator[SpecError]) -> None:
    for error in found:
        raise error


def _of_template(template: Template, path: str) -> Iterator[SpecError]:
    given = template.model_dump(by_alias=True, exclude_unset=True)
    if given:
        yield from _wrong(given, "V1PodTemplateSpec", path)


def _of_overrides(overrides: PodOverrides, path: str) -> Iterator[SpecError]:
    given = overrides.model_dump(by_alias=True, exclude_unset=True)
    if not given:
        return
    types = {**_types("V1PodSpec"), **_types("V1Container"), **OVERRIDES}
    types["securityContext"] = "V1PodSecurityContext"
    types["resources"] = "V1ResourceRequirements"
    for name, value in given.items():
        yield from _wrong(value, types[name], f"{path}.{name}")


def _wrong(value: Any, kind: str, path: str) -> Iterator[SpecError]:
    """Everything that is wrong with a value of a type, as the client's models name types."""
    if value is None:
        return
    part = PARTS.fullmatch(kind)
    if part is not None and part[1] == "List":
        if not isinstance(value, list):
            yield SpecError(path, *LIST)
            return
        for number, each in enumerate(value):
            yield from _wrong(each, part[2], f"{path}[{number}]")
        return
    known = _types(kind)
    if part is not None or known:
        if not isinstance(value, dict):
            yield SpecError(path, *MAPPING)
            return
        for name, each in value.items() if known else ():
            if name in known:
                yield from _wrong(each, known[name], f"{path}.{name}")
            else:
                yield _unknown(f"{path}.{name}", str(name), known)
        return
    expected, said = KINDS.get(kind, (object, ("", "")))
    of_kind = isinstance(value, expected) and not (kind == "int" and isinstance(value, bool))
    if not of_kind:
        yield SpecError(path, *said)
    elif kind == "str" and isinstance(value, bool | list | dict):
        yield SpecError(path, "must be a string", "write it in quotes")


def _unknown(path: str, name: str, known: Mapping[str, str]) -> SpecError:
    client = importlib.import_module("kubernetes")
    version = f"1.{client.__version__.partition('.')[0]}"
    return SpecError(path, f"is unknown to Kubernetes {version}", meant(name, known))


def _types(kind: str) -> dict[str, str]:
    """The fields of a model with their types; empty: it is no model."""
    model = getattr(importlib.import_module(MODELS), kind, None)
    if model is None or not hasattr(model, "attribute_map"):
        return {}
    return {model.attribute_map[name]: each for name, each in model.openapi_types.items()}
