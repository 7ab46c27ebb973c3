"""JSON documents with a checksum, one line each: damage to any byte is noticed (rule 19).

    {"check": "89b2c1d0a4f3e657", "seq": 12, "run": ...}

`check` is the xxh3_64 of all bytes after its own quotation mark.
"""

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from atoll_protos import json_text

_BEFORE = b'{"check": "'
_CHECK_BYTES = 16
_BODY = len(_BEFORE) + _CHECK_BYTES


class DamagedError(Exception):
    """These bytes are not what was written."""


def with_checksum(document: Mapping[str, Any]) -> bytes:
    """One line of JSON with its checksum. A float must be finite."""
    body = b'", ' + json.dumps(document, allow_nan=False).encode()[1:] + b"\n"
    return _BEFORE + xxhash.xxh3_64_hexdigest(body).encode() + body


def checksum_of(data: bytes | bytearray) -> str:
    """The checksum that a document carries; not compared with its bytes."""
    return data[len(_BEFORE) : _BODY].decode()


def without_checksum(data: bytes | bytearray) -> dict[str, Any]:
    """The document, without its checksum. Raises DamagedError."""
    if not data.startswith(_BEFORE):
        raise DamagedError("it does not begin as it was written")
    found = xxhash.xxh3_64_hexdigest(data[_BODY:]).encode()
    if found != data[len(_BEFORE) : _BODY]:
        raise DamagedError("its checksum is wrong")
    try:
        fields = json_text.mapping(data)
    except ValueError as error:
        raise DamagedError(f"it is no JSON document: {error}") from error
    fields.pop("check", None)
    return fields
