"""Files of a job as dataclasses, read strictly from JSON.

An unknown, missing, doubled or wrongly typed field raises SpecError with its path and what to do.
"""

import dataclasses
import json
import reprlib
from enum import StrEnum
from typing import Any, Final, get_args, get_origin, get_type_hints

from atoll_protos.errors import SpecError, require

WORDS: Final = {bool: "true or false", float: "a number", int: "a whole number", str: "a string"}


def parse(kind: Any, text: str, name: str) -> Any:
    """A dataclass from JSON; errors about the whole file call it `name`. Raises SpecError."""
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise SpecError(name, f"is not JSON ({error})", "write it again") from error
    if not isinstance(document, dict):
        raise SpecError(name, f"{short(document)} is not a mapping", "give a mapping")
    return _parse(kind, document, "")


def short(value: Any) -> str:
    return reprlib.repr(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        require(name not in mapping, name, "is given twice", "give it once")
        mapping[name] = value
    return mapping


def _parse(kind: Any, value: Any, path: str) -> Any:
    """`value`, at `path`, as `kind`: a dataclass, enum, tuple, optional or plain type."""
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, path)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise SpecError(path, f"{short(value)} is not a list", "give a list")
        return tuple(
            _parse(get_args(kind)[0], item, f"{path}[{i}]") for i, item in enumerate(value)
        )
    options = get_args(kind)
    if options:  # T | None, or int | the words in its place
        if value is None and type(None) in options:
            return None
        words = options[-1]
        word = issubclass(words, StrEnum) and value in list(words)
        return _parse(words if word else options[0], value, path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise SpecError(path, f"{short(value)} is unknown", f"use one of {', '.join(kind)}")
        return kind(value)
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if type(value) is not kind:
        raise SpecError(path, f"{short(value)} is not {WORDS[kind]}", f"give {WORDS[kind]}")
    return value


def _parse_dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise SpecError(path, f"{short(value)} is not a mapping", "give a mapping")
    hints = get_type_hints(kind)
    prefix = f"{path}." if path else ""
    for name in value:
        if name not in hints:
            raise SpecError(prefix + name, "is unknown", f"remove it; known: {', '.join(hints)}")
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING
        if required and field.name not in value:
            raise SpecError(prefix + field.name, "is missing", "give it")
    return kind(**{name: _parse(hints[name], item, prefix + name) for name, item in value.items()})
