"""A part of a status as the API server and status.json have it, and the model of a condition."""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from atoll_operator.api.reasons import FALSE, TRUE, UNKNOWN

# As metav1.Condition has them.
TYPE: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class Shown(BaseModel):
    """A part of a status: camelCase outside, and fields of a newer version are kept as they are."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True
    )

    def to_object(self) -> dict[str, Any]:
        """As the API server and status.json have it: without the fields that are None."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Condition(Shown):
    """One condition. `atoll run` gives no generation and no time."""

    type: str = Field(
        max_length=316, pattern=TYPE, description="Which question this condition answers."
    )
    status: str = Field(
        description="True, False, or Unknown when it cannot be seen now.",
        json_schema_extra={"enum": [TRUE, FALSE, UNKNOWN]},
    )
    observed_generation: int | None = Field(
        default=None, ge=0, description="The metadata.generation that this condition describes."
    )
    last_transition_time: str | None = Field(
        default=None,
        description="When the status of this condition changed last.",
        json_schema_extra={"format": "date-time"},
    )
    reason: str = Field(
        min_length=1,
        max_length=1024,
        pattern=REASON,
        description="Why, in one word; docs/conditions.md has the remedies.",
    )
    message: str = Field(
        default="", max_length=32768, description="The details, for a person to read."
    )
