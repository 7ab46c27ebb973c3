"""Results of pure functions that every pass asks for with the same input: made once, and kept.

A pass is a function of what it has seen, and from one pass to the next hardly anything of that
changes: the manifest is read, and all children are rendered and hashed, to find that they are as
they were. A kept result is no memory of the plan's, since to lose it changes nothing but the time
that a pass takes.

When it is still right. Whatever was made is kept with the *whole* input that it was made from, and
given again only while the input is the same (`same`). So there is no event that has to make it
invalid and could be forgotten. An input of a kept function belongs into `given`: hand over whole
values (a dataclass, an object of the API server), not chosen fields of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, TypeVar

import pydantic

Made = TypeVar("Made")


@dataclass(slots=True)
class Kept(Generic[Made]):
    """The last result for each of `most` keys; the one that was not asked for longest goes."""

    most: int
    found: OrderedDict[Hashable, tuple[object, Made]] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, given: object, make: Callable[[], Made]) -> Made:
        """What `make` makes of `given`, and of nothing else. It is shared: not to be changed."""
        known = self.found.get(key)
        if known is None or not same(known[0], given):
            known = self.found[key] = (given, make())
        self.found.move_to_end(key)
        if len(self.found) > self.most:
            self.found.popitem(last=False)
        return known[1]


def same(one: Any, other: Any) -> bool:
    """Whether two values are alike in everything that a function could see of them.

    Stricter than ==, for which 1 and True are equal, and which leaves fields of a dataclass out
    that are not compared.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, pydantic.BaseModel):
        return same(_parts(one), _parts(other))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _parts(model: pydantic.BaseModel) -> tuple[Any, ...]:
    """All that a model consists of: also fields that it does not declare, and which were given."""
    return vars(model), model.model_extra, model.model_fields_set
