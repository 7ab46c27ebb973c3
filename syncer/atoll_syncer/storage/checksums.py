"""JSON documents with a checksum, one line each: damage to any byte is noticed (rule 19).

    {"check": "89b2c1d0a4f3e657", "seq": 12, "run": ...}

`check` is the xxh3_64 of all bytes after its own quotation mark. It stands at a fixed place, so a
document whose first bytes are damaged is no document without a checksum either: those, which
earlier versions wrote, begin with `{"seq"`.
"""

import json
from collections.abc import Mapping
from typing import Any

import xxhash

_BEFORE = b'{"check": "'
_CHECK_BYTES = 16
_BODY = len(_BEFORE) + _CHECK_BYTES
_OLDER = b'{"seq": '


class DamagedError(Exception):
    """These bytes are not what was written."""


def with_checksum(document: Mapping[str, Any]) -> bytes:
    """One line of JSON with its checksum. A float must be finite."""
    body = b'", ' + json.dumps(document, allow_nan=False).encode()[1:] + b"\n"
    return _BEFORE + xxhash.xxh3_64_hexdigest(body).encode() + body


def without_checksum(data: bytes) -> dict[str, Any]:
    """The document, without its checksum; one of an earlier version has none. See `has_checksum`.

    Raises DamagedError.
    """
    if not has_checksum(data) and not (data.startswith(_OLDER) and data.endswith(b"}\n")):
        raise DamagedError("it does not begin or end as it was written")
    if has_checksum(data):
        found = xxhash.xxh3_64_hexdigest(data[_BODY:]).encode()
        if found != data[len(_BEFORE) : _BODY]:
            raise DamagedError("its checksum is wrong")
    try:
        document = json.loads(data)
    except ValueError as error:
        raise DamagedError(f"it is not JSON: {error}") from error
    document.pop("check", None)
    fields: dict[str, Any] = document
    return fields


def has_checksum(data: bytes) -> bool:
    """Whether the document has a checksum."""
    return data.startswith(_BEFORE)
