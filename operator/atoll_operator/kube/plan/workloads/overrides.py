"""A region's podOverrides, merged into the learners' pod template as Kubernetes would merge them.

The rules are those of a strategic merge, by the same keys. Two things differ: `tolerations` and
`envFrom` are appended, and an entry with a known key takes the place of the template's as a whole
(a volume has one source), but for init containers. An empty value changes nothing.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from atoll_operator.api.job.pod_fields import PodOverrides

Object = dict[str, Any]
Merge = Callable[[Any, Any], Any]

RENAMED = {"containerSecurityContext": "securityContext"}


def _replaced(old: Any, new: Any) -> Any:
    del old
    return new


def _united(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> Object:
    return {**(old or {}), **new}


def _appended(old: list[Any] | None, new: list[Any]) -> list[Any]:
    return [*(old or []), *new]


def _by(key: str) -> Merge:
    """Merge lists in the template's order; an entry with the same key takes the other's place."""

    def merge(old: list[Object] | None, new: list[Object]) -> list[Object]:
        return list({each[key]: each for each in [*(old or []), *new]}.values())

    return merge


def _init_containers(old: list[Object] | None, new: list[Object]) -> list[Object]:
    found = {each["name"]: each for each in old or []}
    for each in new:
        found[each["name"]] = _merged(found.get(each["name"], {}), each, CONTAINER)
    return list(found.values())


# By field, how it is merged; what is not named is replaced.
METADATA: Mapping[str, Merge] = {"labels": _united, "annotations": _united}
CONTAINER: Mapping[str, Merge] = {
    "image": _replaced,
    "command": _replaced,
    "args": _replaced,
    "resources": _replaced,
    "env": _by("name"),
    "envFrom": _appended,
    "volumeMounts": _by("mountPath"),
    "containerSecurityContext": _united,
}
POD: Mapping[str, Merge] = {
    "volumes": _by("name"),
    "initContainers": _init_containers,
    "imagePullSecrets": _by("name"),
    "resourceClaims": _by("name"),
    "topologySpreadConstraints": _by("topologyKey"),
    "tolerations": _appended,
    "nodeSelector": _united,
    "affinity": _united,
    "securityContext": _united,
    "serviceAccountName": _replaced,
    "priorityClassName": _replaced,
    "runtimeClassName": _replaced,
    "schedulerName": _replaced,
}


def overridden(template: Mapping[str, Any], overrides: PodOverrides) -> Object:
    """The template with what the region changes; its first container is the learner's."""
    found: Object = copy.deepcopy(dict(template))
    dumped = overrides.model_dump(by_alias=True, exclude_unset=True)
    given = copy.deepcopy({name: value for name, value in dumped.items() if value})
    if not given:
        return found
    metadata, spec = found.get("metadata", {}), found.get("spec", {})
    containers = spec.get("containers") or [{}]
    parts = [{name: given[name] for name in table if name in given}
             for table in (METADATA, CONTAINER, POD)]  # fmt: skip
    if parts[0]:
        found["metadata"] = _merged(metadata, parts[0], METADATA)
    containers = [_merged(containers[0], parts[1], CONTAINER), *containers[1:]]
    found["spec"] = {**_merged(spec, parts[2], POD), "containers": containers}
    return found


def _merged(old: Object, new: Object, table: Mapping[str, Merge]) -> Object:
    found = dict(old)
    for name, value in new.items():
        field = RENAMED.get(name, name)
        found[field] = table.get(name, _replaced)(found.get(field), value)
    return found
