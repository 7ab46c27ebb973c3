"""Drift: where a live object differs from what the operator would apply to it.

The comparison is of values, field by field: every field that would be applied is in the live object
with that value; other fields are others'. The hash that was last applied says nothing of what has
become of the object, and `managedFields` who wrote a field last, but not what it holds.

What the API server stores may look different from what was sent, and is equal all the same:

    absent          nothing, as null, "", false, 0, [] and {} are left out of many fields;
                    an `emptyDir: {}` is kept, and tells one source of a volume from another
    lists of maps   compared by the key by which server-side apply merges them, in any order;
                    elements that only the live list has are others' (LIST_KEYS)
    other lists     as a whole: the same number of elements, each as a map is compared
    selectors       as a whole: one more label in a Service's selector makes it select nothing
    quantities      by their value: "1000m" is 1
    null            says nothing: the field is left to the cluster

What else differs in the answer to an apply is `settled`: it is no drift as long as the live object
has that same value (`memory`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_operator.kube.observed.quantities import quantity

LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "schedulingGates": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
}
WHOLE = frozenset({"selector", "nodeSelector", "labelSelector", "nodeSelectorTerms"})
QUANTITIES = frozenset({"limits", "requests", "overhead", "sizeLimit", "divisor"})
KEPT_EMPTY = frozenset({"emptyDir"})
NOTHING: tuple[Any, ...] = (None, "", False, 0, [], {})

Settled = frozenset[tuple[str, str]]  # path and value of what the server writes in its own way


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A field whose live value is not the wanted one; `found` is None where it is absent."""

    path: str  # such as spec.template.spec.containers[learner].image
    wanted: Any
    found: Any

    @property
    def mark(self) -> tuple[str, str]:
        return self.path, repr(self.found)


def drift(
    wanted: Mapping[str, Any], live: Mapping[str, Any], settled: Settled = frozenset()
) -> tuple[Drift, ...]:
    """Every field of `wanted`, an object as it is applied, that an apply would mend in `live`."""
    found = _maps("", wanted, live, whole=False)
    return tuple(each for each in found if each.mark not in settled)


def _values(path: str, wanted: Any, found: Any, *, key: str, whole: bool) -> Iterator[Drift]:
    if wanted is None and not whole:
        return
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        yield from _maps(path, wanted, found, whole=whole, key=key)
    elif isinstance(wanted, Mapping) and found is None:
        if key in KEPT_EMPTY:
            yield Drift(path=path, wanted=wanted, found=None)
        for name, value in wanted.items():
            yield from _values(f"{path}.{name}", value, None, key=name, whole=whole)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        yield from _lists(path, wanted, found if isinstance(found, list) else [], key, whole=whole)
    elif not _equal(wanted, found, is_quantity=key in QUANTITIES):
        yield Drift(path=path, wanted=wanted, found=found)


def _maps(
    path: str, wanted: Mapping[str, Any], found: Mapping[str, Any], *, whole: bool, key: str = ""
) -> Iterator[Drift]:
    for name, value in wanted.items():
        below = f"{path}.{name}" if path else name
        yield from _values(
            below,
            value,
            found.get(name),
            key=key if key in QUANTITIES else name,
            whole=whole or name in WHOLE,
        )
    if whole:
        for name in found.keys() - wanted.keys():
            if found[name] not in NOTHING:
                yield Drift(path=f"{path}.{name}", wanted=None, found=found[name])


def _lists(
    path: str, wanted: Sequence[Any], found: Sequence[Any], key: str, *, whole: bool
) -> Iterator[Drift]:
    keys = _keys(key, wanted)
    if keys and all(isinstance(each, Mapping) for each in (*wanted, *found)):
        live = {_identity(each, keys): each for each in found}
        for each in wanted:
            mark = _identity(each, keys)
            name = f"{path}[{','.join(mark)}]"
            if mark in live:
                yield from _maps(name, each, live[mark], whole=whole)
            else:
                yield Drift(path=name, wanted=each, found=None)
    elif len(wanted) != len(found):
        yield Drift(path=path, wanted=wanted, found=found or None)
    else:
        for number, (each, other) in enumerate(zip(wanted, found, strict=True)):
            yield from _values(f"{path}[{number}]", each, other, key="", whole=whole)


def _keys(key: str, elements: Sequence[Any]) -> tuple[str, ...]:
    """By what the elements of a list are told apart; empty: the list is one value."""
    if key == "ports" and elements:  # of a container, else of a Service
        return ("containerPort" if "containerPort" in elements[0] else "port", "protocol")
    return LIST_KEYS.get(key, ())


def _identity(element: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(element.get(key, "TCP" if key == "protocol" else "")) for key in keys)


def _equal(wanted: Any, found: Any, *, is_quantity: bool) -> bool:
    if found is None:
        return wanted in NOTHING
    if is_quantity:
        one, other = quantity(wanted), quantity(found)
        return wanted == found or (one is not None and one == other)
    return bool(wanted == found)
