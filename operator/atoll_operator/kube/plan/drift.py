"""Drift: where a live object differs from what the operator would apply to it.

The comparison is of values, field by field: every field that would be applied is in the live object
with that value. It says nothing about fields that are not applied: defaults of the API server, the
labels of a deployment tool and the container of a service mesh stay.

Why not the hash that was last applied. It says what this operator wrote, and not what has become
of it: after `kubectl scale` or `kubectl edit` the hash is the same.
Why not `managedFields`. They say who wrote a field last, and not what it holds. A field that
another manager has set to the value that it should have is no drift, one that is lost together with
its entry would not be seen, and tools remove all entries at will.

What the API server stores may look different from what was sent, and is equal all the same:

    absent          nothing, as null, "", false, 0, [] and {} are left out of many fields;
                    an `emptyDir: {}` is kept, and tells one source of a volume from another
    lists of maps   compared by the key by which server-side apply merges them, in any order;
                    elements that only the live list has are others' (LIST_KEYS)
    other lists     as a whole: the same number of elements, each as a map is compared
    selectors       as a whole: one more label in a Service's selector makes it select nothing
    quantities      by their value: "1000m" is 1
    null            says nothing: the field is left to the cluster

Anything else that a server writes in another way would look like drift for ever. So the answer to
an apply is compared as well, and what differs in it is `settled`: it is no drift as long as the
live object has that same value (`memory`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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
QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]+|[numkKMGTPE]?i?)")
TENS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
TWOS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

Settled = frozenset[tuple[str, str]]  # path and value of what the server writes in its own way


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field whose live value is not the wanted one; `found` is None where it is absent."""

    path: str  # such as spec.template.spec.containers[learner].image
    wanted: Any
    found: Any

    @property
    def mark(self) -> tuple[str, str]:
        """What makes two differences the same: the path and the live value."""
        return self.path, repr(self.found)


def differences(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every field of `wanted`, an object as it is applied, that `live` holds in another way."""
    return tuple(_maps("", wanted, live, whole=False))


def drift(
    wanted: Mapping[str, Any], live: Mapping[str, Any], settled: Settled = frozenset()
) -> tuple[Difference, ...]:
    """The differences that an apply would mend."""
    return tuple(each for each in differences(wanted, live) if each.mark not in settled)


def _values(path: str, wanted: Any, found: Any, *, key: str, whole: bool) -> Iterator[Difference]:
    """Differences of one value, which is below the field `key`."""
    if wanted is None and not whole:
        return
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        yield from _maps(path, wanted, found, whole=whole, key=key)
    elif isinstance(wanted, Mapping) and found is None:
        if key in KEPT_EMPTY:
            yield Difference(path=path, wanted=wanted, found=None)
        for name, value in wanted.items():
            yield from _values(f"{path}.{name}", value, None, key=name, whole=whole)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        yield from _lists(path, wanted, found if isinstance(found, list) else [], key, whole=whole)
    elif not _equal(wanted, found, is_quantity=key in QUANTITIES):
        yield Difference(path=path, wanted=wanted, found=found)


def _maps(
    path: str, wanted: Mapping[str, Any], found: Mapping[str, Any], *, whole: bool, key: str = ""
) -> Iterator[Difference]:
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
                yield Difference(path=f"{path}.{name}", wanted=None, found=found[name])


def _lists(
    path: str, wanted: Sequence[Any], found: Sequence[Any], key: str, *, whole: bool
) -> Iterator[Difference]:
    keys = _keys(key, wanted)
    if keys and all(isinstance(each, Mapping) for each in (*wanted, *found)):
        live = {_identity(each, keys): each for each in found}
        for each in wanted:
            mark = _identity(each, keys)
            name = f"{path}[{','.join(mark)}]"
            if mark in live:
                yield from _maps(name, each, live[mark], whole=whole)
            else:
                yield Difference(path=name, wanted=each, found=None)
    elif len(wanted) != len(found):
        yield Difference(path=path, wanted=wanted, found=found or None)
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


def quantity(text: Any) -> Decimal | None:
    """The number that a quantity such as "1500m" or "2Gi" stands for; None: it is none."""
    found = QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    number, suffix = found.groups()
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return Decimal(number + suffix)
    if suffix in TWOS:
        return Decimal(number) * (1 << TWOS[suffix])
    return Decimal(number).scaleb(TENS[suffix]) if suffix in TENS else None
