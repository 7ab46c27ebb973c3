"""Values for another process of this learner, as JSON: nothing that came from one is unpickled.

What arrives are numbers, text, bytes, tuples (for lists, too), sets, mappings with text for keys,
and dataclasses that are `known`, made by their own constructors. Floats arrive bit for bit. What
JSON has no form for is {"": [name of its class, arguments...]}, and no mapping has an empty key.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, Final, TypeVar

from atoll_protos.job.run_file import RunFile

T = TypeVar("T")

_known: Final[dict[str, Any]] = {}
_give: Final[dict[type, Callable[[Any], tuple[object, ...]]]] = {
    bytes: lambda value: (b64encode(value).decode(),),
    set: tuple,
    RunFile: lambda value: (value.to_json(),),  # which has words in place of numbers
}
_make: Final[dict[str, Callable[..., object]]] = {
    "bytes": b64decode,
    "set": lambda *items: set(items),
    "RunFile": RunFile.from_json,
}


def known(kind: type[T]) -> type[T]:
    """Let values of a dataclass travel; a decorator. All processes import it before."""
    _known[kind.__name__] = kind
    return kind


def encode(value: object) -> bytes:
    """Raises TypeError for what cannot travel."""
    return _encoder.encode(value).encode()


def decode(data: bytes | bytearray) -> Any:
    """Raises ValueError, KeyError or TypeError for what `encode` has not made."""
    return _made(json.loads(data))


def _form(value: object) -> dict[str, tuple[object, ...]]:
    kind = type(value)
    if kind in _give:
        return {"": (kind.__name__, *_give[kind](value))}
    if _known.get(kind.__name__) is not kind:
        raise TypeError(f"{kind.__name__} does not travel between processes")
    return {"": (kind.__name__, *(getattr(value, name) for name in _names(kind)))}


def _made(form: Any) -> Any:
    if isinstance(form, list):
        return tuple(map(_made, form))
    if not isinstance(form, dict):
        return form
    if "" not in form:
        return {key: _made(item) for key, item in form.items()}
    name, *arguments = map(_made, form[""])
    if name in _make:
        return _make[name](*arguments)
    kind = _known[name]
    return kind(**dict(zip(_names(kind), arguments, strict=True)))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


_encoder: Final = json.JSONEncoder(default=_form, separators=(",", ":"))
