"""What each field of a message keeps to, whoever sends it: the table of bounds (rule 38).

A number is a counter, below 2^53, so that every sum of counters fits the fields in which it travels
and is kept. A text is a name, a digest or an id, which goes into words and logs as it is. A time is
finite and not negative. The tables name the fields that are something else. What depends on what a
process knows (ticks, slices, incarnations) the rules of each side check.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from atoll_protos.job.layout import DIMENSIONS_MAX
from atoll_protos.job.schedule import ENDS_MAX
from atoll_protos.names import COUNTER_MAX

AHEAD_MAX: Final = 1_000_000  # of epochs and incarnations, above what a process knows
SECONDS_MAX: Final = 1e9
LETTERS_MAX: Final = 512  # of a name, a digest, an id
TEXT_LETTERS_MAX: Final = 10_000
SLOTS_MAX: Final = 20_000

# In words, or of other programs: escaped where they are shown.
TEXTS: Final = {
    *("Leave.reason", "Report.trouble", "End.reason", "End.remedy", "HelloRequest.checkpoint"),
}
# For people and for comparisons: a learner that diverges reports so.
UNBOUND: Final = {"Report.loss", "Report.first_losses", "Evaluation.loss"}
ENTRIES_MAX: Final[Mapping[str, int]] = {
    "Held.lineage": SLOTS_MAX,
    "Publish.lineage": SLOTS_MAX,
    "HelloRequest.taken": SLOTS_MAX,
    "HelloRequest.named": SLOTS_MAX,
    "Length.ends": ENDS_MAX,
    "Tensor.shape": DIMENSIONS_MAX,
}
INTEGERS: Final = {
    *(FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64),
}


def objection(message: Message) -> str:
    """Return which field of a message, or of a part of it, is out of bounds; empty: none is."""
    return first(_of_field(field, value) for field, value in message.ListFields())


def above(name: str, value: int, most: int) -> str:
    return f"{name} {value} is above {most}" if value > most else ""


def first(objections: Iterable[str]) -> str:
    return next(filter(None, objections), "")


def _of_field(field: FieldDescriptor, value: Any) -> str:
    name = field.full_name.removeprefix("atoll_protos.v1.")
    if not field.is_repeated:
        return _of_value(field, name, value)
    return above(field.name, len(value), ENTRIES_MAX.get(name, len(value))) or first(
        _of_value(field, name, entry) for entry in value
    )


def _of_value(field: FieldDescriptor, name: str, value: Any) -> str:
    if name in UNBOUND:
        return ""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return objection(value)
    if field.type in INTEGERS:
        return above(field.name, value, COUNTER_MAX)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _of_text(name, value)
    if field.type == FieldDescriptor.TYPE_DOUBLE and not 0 <= value <= SECONDS_MAX:
        return f"{field.name} {value} is not within 0..{SECONDS_MAX:.0f}"
    return ""


def _of_text(name: str, text: str) -> str:
    if name not in TEXTS and not text.isprintable():
        return "a name with characters that cannot be printed"
    return above("letters of a text", len(text), TEXT_LETTERS_MAX if name in TEXTS else LETTERS_MAX)
