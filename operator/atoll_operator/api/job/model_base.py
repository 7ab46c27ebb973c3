"""What all models of a manifest have in common, and the limits that several of them share."""

import ast
import difflib
import inspect
from collections.abc import Collection
from itertools import pairwise
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

LEARNERS_MAX: Final = 1000  # of a region
NAME_CHARACTERS_MAX: Final = 50  # of a job and a region together
REGIONS_MAX: Final = 64
COUNT_MAX: Final = (1 << 53) - 1  # JSON's whole numbers
SECONDS_MAX: Final = 10 * 365 * 24 * 3600
BUCKET: Final = (  # the URL of a folder in a bucket
    r"((s3|gs)://[a-z0-9][a-z0-9._-]*|az://[a-z0-9]+/[a-z0-9-]+)(/[A-Za-z0-9_][A-Za-z0-9._=-]*)*"
)


def _described(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Make the text below a field its description; read only when a schema is asked for."""
    defined = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(defined, ast.ClassDef)
    for pair in pairwise(defined.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(field)), ast.Expr(value=ast.Constant(str(text))):
                alias = model.model_fields[field].alias
                schema["properties"][alias]["description"] = " ".join(text.split())


IN_CAMEL_CASE: Final = ConfigDict(
    alias_generator=to_camel, populate_by_name=True, frozen=True, json_schema_extra=_described
)
ShortText = Annotated[str, Field(max_length=253)]


class Model(BaseModel):
    """Fields in camelCase; unknown fields are errors, and a value cannot change.

    The text below a field is its description in the CRD and in docs/spec.md.
    """

    model_config = ConfigDict(**IN_CAMEL_CASE, extra="forbid", strict=True)


def meant(name: str, known: Collection[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else "remove it or fix its spelling"


def fields_at(model: type[Model], path: Collection[str | int]) -> list[str]:
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
