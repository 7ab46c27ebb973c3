"""Values of the log as plain JSON values and back, field by field as their classes declare them.

What is written outlives programs: unknown fields are ignored, missing ones have their defaults.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

NUMBER_MAX: Final = 1 << 62  # what is counted on from it fits the fields of a message

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
    """Raises ValueError, KeyError, TypeError or AttributeError for anything else."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        (present,) = (each for each in arguments if each is not type(None))
        return None if value is None else from_document(present, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = hints_of(kind)
        names = {f.name for f in dataclasses.fields(kind)} & value.keys()
        return kind(**{name: from_document(hints[name], value[name]) for name in names})
    if kind in (dict, Mapping):
        pairs = value.items() if isinstance(value, dict) else value
        key_type, each_type = arguments
        return {from_document(key_type, k): from_document(each_type, each) for k, each in pairs}
    if kind in (set, list):
        return kind(from_document(arguments[0], each) for each in value)
    if kind is tuple:  # of one type
        return tuple(from_document(arguments[0], each) for each in value)
    if kind is float and isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    if kind in (str, int, bool, float) and (kind is float or not isinstance(value, kind)):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    if kind is int and not 0 <= value < NUMBER_MAX:
        raise ValueError(f"{value} is out of range")
    return value
