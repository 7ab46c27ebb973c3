"""What all models of a manifest have in common, and the limits that several of them share."""

from typing import Annotated, Final

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
