"""YAML that people write: whatever is wrong with it is a SpecError."""

from typing import Any, Final

import yaml

from atoll_protos.errors import SpecError

VALUES_MAX: Final = 1_000_000  # each as often as an alias names it
# PyYAML's own, and what comes out of its constructors: of `!!int ""`, or the date 2026-99-99.
ERRORS: Final = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError)


def documents(text: str, name: str) -> list[Any]:
    """Those that are not empty; errors call the text `name`. Raises SpecError."""
    try:
        found = [each for each in yaml.safe_load_all(text) if each is not None]
        count = _count(found, {})
    except RecursionError as error:
        problem = "is nested too deep, or holds itself"
        raise SpecError(name, problem, "fix the file") from error
    except ERRORS as error:
        raise SpecError(name, f"is not YAML ({error})", "fix the file") from error
    if count > VALUES_MAX:
        problem = f"has {count:,} values with those that its aliases repeat"
        raise SpecError(name, problem, f"give at most {VALUES_MAX:,}")
    return found


def document(text: str, name: str) -> Any:
    """The only one; None: there is none. Raises SpecError."""
    found = documents(text, name)
    if len(found) > 1:
        raise SpecError(name, f"holds {len(found)} documents", "write one")
    return found[0] if found else None


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values are in it, itself with them; one that holds itself is a RecursionError."""
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) not in known:
        inside = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known) for each in inside)
    return known[id(value)]
