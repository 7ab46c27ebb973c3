"""What all models of a manifest have in common, and the limits that several of them share."""

import difflib
from collections.abc import Collection
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

LEARNERS_MAX: Final = 1000  # of a region
NAME_CHARACTERS_MAX: Final = 50  # of a job and a region together
REGIONS_MAX: Final = 64
COUNT_MAX: Final = (1 << 53) - 1  # JSON's whole numbers
SECONDS_MAX: Final = 10 * 365 * 24 * 3600

ShortText = Annotated[str, Field(max_length=253)]


class Model(BaseModel):
    """Fields in camelCase; unknown fields are errors, and a value cannot change."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


def meant(name: str, known: Collection[str]) -> str:
    """The remedy for a field that is unknown where these are known."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else "remove it or fix its spelling"


def fields_at(model: type[Model], path: Collection[str | int]) -> list[str]:
    """The names of the fields that a manifest may have at a path below this model."""
    for part in path:
        if isinstance(part, str):
            fields = model.model_fields.values()
            model = next(_models(each.annotation) for each in fields if each.alias == part)[0]
    return [each.alias for each in model.model_fields.values() if each.alias]


def _models(kind: Any) -> list[type[Model]]:
    """The models in an annotation such as `list[X]` or `X | None`."""
    if isinstance(kind, type) and issubclass(kind, Model):
        return [kind]
    return [found for each in get_args(kind) for found in _models(each)]
