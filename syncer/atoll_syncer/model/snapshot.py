"""A history as plain JSON values and back: what a snapshot of the log holds (rule 19).

Every field of `History` goes in, by its declared type, so that a new field is in every snapshot
from then on. Snapshots outlive programs like entries do: a field that this version does not know
is ignored, and one that is not there has its default.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from atoll_syncer.model.history import History


def to_document(history: History) -> dict[str, Any]:
    """The history as plain JSON values, by field."""
    document: dict[str, Any] = _plain(history)
    return document


def from_document(document: Mapping[str, Any]) -> History:
    """The history that `to_document` described.

    Raises ValueError, KeyError, TypeError or AttributeError for anything else.
    """
    history: History = _typed(History, document)
    return history


def _plain(value: Any) -> Any:
    """As JSON can hold it: a mapping whose keys are no texts becomes a list of pairs."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(each) for key, each in value.items()}
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _typed(hint: Any, value: Any) -> Any:
    """The value of this type that `_plain` made plain."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        (present,) = (each for each in arguments if each is not type(None))
        return None if value is None else _typed(present, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        names = {f.name for f in dataclasses.fields(kind)} & value.keys()
        return kind(**{name: _typed(hints[name], value[name]) for name in names})
    if kind is dict:
        pairs = value.items() if isinstance(value, dict) else value
        key_type, each_type = arguments
        return {_typed(key_type, key): _typed(each_type, each) for key, each in pairs}
    if kind in (set, list):
        return kind(_typed(arguments[0], each) for each in value)
    if kind is tuple and arguments[-1] is Ellipsis:
        return tuple(_typed(arguments[0], each) for each in value)
    if kind is tuple:
        return tuple(_typed(each, part) for each, part in zip(arguments, value, strict=True))
    if isinstance(kind, type) and kind in (str, int, bool) and not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
