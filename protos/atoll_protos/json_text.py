"""JSON that others have written: whatever is wrong with it is a ValueError."""

import json
from typing import Any


def loads(text: str | bytes | bytearray) -> Any:
    """Any value. Raises ValueError, also for lists in lists without an end."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def mapping(text: str | bytes | bytearray) -> dict[str, Any]:
    """A mapping. Raises ValueError for anything else."""
    found = loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a mapping")
    return found
