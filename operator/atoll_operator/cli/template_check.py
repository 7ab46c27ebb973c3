"""What is obviously wrong in a pod template, for `atoll validate`: unknown fields and wrong kinds.

Templates are the cluster's to check, in its own version (docs/kubernetes.md). Here the models of
Kubernetes' client stand in for it, which know the API of one version. So only what no version would
take is refused, and a number in place of a text is left to the cluster.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from atoll_operator.api.job.model_base import meant
from atoll_operator.api.job.parsing import WORDS
from atoll_operator.api.job.spec import Job
from atoll_protos.errors import SpecError

MODELS = "kubernetes.client.models"  # imported only where there is something to check: 0.4 s
PARTS = re.compile(r"(List|Dict)[\[(](?:str, )?(\w+)[\])]")  # List[V1Volume], Dict[str, str]
KINDS: Mapping[str, type] = {"int": int, "bool": bool}
OVERRIDES = {  # fields of podOverrides that a pod template has under another name
    "containerSecurityContext": "V1SecurityContext",
    "securityContext": "V1PodSecurityContext",
    "resources": "V1ResourceRequirements",
    "labels": "Dict[str, str]",
    "annotations": "Dict[str, str]",
}


def check(job: Job) -> None:
    """Raises SpecError for the first thing that is wrong in the job's templates."""
    if (error := next(_all_wrong(job), None)) is not None:
        raise error


def _all_wrong(job: Job) -> Iterator[SpecError]:
    spec = job.spec
    roles = {"learner": spec.learner, "syncer": spec.syncer, "evaluator": spec.evaluator}
    for role, each in roles.items():
        given = each.template.model_dump(by_alias=True, exclude_unset=True) if each else None
        if given:
            yield from _wrong(given, "V1PodTemplateSpec", f"spec.{role}.template")
    for region in spec.regions:
        given = region.pod_overrides.model_dump(by_alias=True, exclude_unset=True)
        types = {**_types("V1PodSpec"), **_types("V1Container"), **OVERRIDES} if given else {}
        for name, value in given.items():
            path = f"spec.regions[{region.name}].podOverrides.{name}"
            yield from _wrong(value, types[name], path)


def _wrong(value: Any, kind: str, path: str) -> Iterator[SpecError]:
    if value is None:
        return
    part = PARTS.fullmatch(kind)
    known = _types(kind)
    if part is not None and part[1] == "List":
        if not isinstance(value, list):
            yield SpecError(path, *WORDS["list_type"])
            return
        for number, each in enumerate(value):
            yield from _wrong(each, part[2], f"{path}[{number}]")
    elif part is not None or known:
        if not isinstance(value, dict):
            yield SpecError(path, *WORDS["dict_type"])
            return
        for name, each in value.items() if known else ():
            if name in known:
                yield from _wrong(each, known[name], f"{path}.{name}")
            else:
                yield _unknown(f"{path}.{name}", str(name), known)
    elif kind in KINDS and type(value) is not KINDS[kind]:
        yield SpecError(path, *WORDS[f"{kind}_type"])
    elif kind == "str" and isinstance(value, bool | list | dict):
        yield SpecError(path, *WORDS["string_type"])


def _unknown(path: str, name: str, known: Mapping[str, str]) -> SpecError:
    client = importlib.import_module("kubernetes")
    version = f"1.{client.__version__.partition('.')[0]}"
    return SpecError(path, f"is unknown to Kubernetes {version}", meant(name, known))


def _types(kind: str) -> dict[str, str]:
    model = getattr(importlib.import_module(MODELS), kind, None)
    if model is None or not hasattr(model, "attribute_map"):
        return {}
    return {model.attribute_map[name]: each for name, each in model.openapi_types.items()}
