"""Values of files and of the log as JSON and back, field by field as their classes declare them.

`from_document` ignores unknown fields, since the log outlives programs; `parse` refuses them, since
a file is of one version. Missing fields have their defaults in both.
"""

import dataclasses
import json
import math
import reprlib
import types
from collections.abc import Mapping
from enum import EnumType
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from atoll_protos.errors import SpecError

NUMBER_MAX: Final = 1 << 62  # what is counted on from it fits the fields of a message

T = TypeVar("T")
hints_of = cache(get_type_hints)


def to_document(value: Any) -> Any:
    """As JSON can hold it: a mapping whose keys are no texts becomes a list of pairs."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_document(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_document(each) for key, each in value.items()}
        return [[to_document(key), to_document(each)] for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [to_document(each) for each in value]
    return value


def from_document(hint: Any, value: Any) -> Any:
    """Raise ValueError, KeyError, TypeError or AttributeError for anything else."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):  # T | None, or T | the words in its place
        first, other = arguments
        if value is None and other is type(None):
            return None
        words: list[Any] = [] if other is type(None) else list(other)
        return from_document(other if value in words else first, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = hints_of(kind)
        names = {f.name for f in dataclasses.fields(kind)} & value.keys()
        return kind(**{name: _field(name, hints[name], value[name]) for name in names})
    if kind in (dict, Mapping):
        pairs = value.items() if isinstance(value, dict) else value
        key_type, item_type = arguments
        return {from_document(key_type, k): from_document(item_type, item) for k, item in pairs}
    if kind in (set, list, tuple):  # of one type
        if not isinstance(value, list | tuple):
            raise TypeError(f"{reprlib.repr(value)} is no list")
        return kind(from_document(arguments[0], item) for item in value)
    if isinstance(kind, EnumType):
        return kind(value)
    if kind is float and isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    if kind in (str, int, bool, float) and (kind is float or type(value) is not kind):
        raise TypeError(f"{reprlib.repr(value)} is no {kind.__name__}")
    if kind is int and not 0 <= value < NUMBER_MAX:
        raise ValueError(f"{reprlib.repr(value)} is out of range")
    return value


def _field(name: str, hint: Any, value: Any) -> Any:
    try:
        return from_document(hint, value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: {error}") from error


def parse(kind: type[T], text: str, name: str) -> T:
    """Parse a dataclass from a file that Atoll wrote; errors call it `name`. Raises SpecError."""
    try:
        document = mapping(text)
        value: T = from_document(kind, document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(name, f"cannot be read ({error})", "write it again") from error
    if unknown := flat(document).keys() - flat(to_document(value)).keys():
        remedy = f"use the version of Atoll that wrote the {name}"
        raise SpecError(min(unknown), "is unknown", remedy)
    return value


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Join a mapping of mappings into one, with paths for names."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        inner = value if isinstance(value, dict) else None
        found |= {name: value} if inner is None else {f"{name}.{key}": inner[key] for key in inner}
    return found


def loads(text: str | bytes | bytearray) -> Any:
    """Any value. Raises ValueError, also for lists in lists without an end."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def mapping(text: str | bytes | bytearray) -> dict[str, Any]:
    """Raise ValueError for anything but a mapping."""
    found = loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a mapping")
    return found
