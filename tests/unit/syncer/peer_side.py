"""Messages with extreme and random fields, made from their descriptors, so no field is left out."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from unit.syncer.shard_side import RUN, digest

COUNTS = [0, 1, 2, 3, 7, 50, 1_000, 2**31, 2**40, 2**52, 2**53 - 1, 2**53, 2**63, 2**64 - 1]
SMALL = [0, 1, 2, 7, 255, 2**31, 2**32 - 1]
SECONDS = [0.0, 1e-9, 0.1, 1.0, 1e6, 1e300, -1.0, float("nan"), float("inf"), -float("inf")]
WORDS = [
    *("", "b-0", "b-1", "nowhere-0", "no slot", "b-" + "9" * 30, RUN, "another run"),
    *(digest(0, 0), digest(0, 0)[:16], digest(1, 1), "x" * 16, "x" * 600, "é\n\x00"),
]
KINDS = FieldDescriptor
VALUES: dict[int, st.SearchStrategy[Any]] = {
    KINDS.TYPE_UINT64: st.sampled_from(COUNTS),
    KINDS.TYPE_UINT32: st.sampled_from(SMALL),
    KINDS.TYPE_FIXED64: st.sampled_from(COUNTS),
    KINDS.TYPE_DOUBLE: st.sampled_from(SECONDS),
    KINDS.TYPE_BOOL: st.booleans(),
    KINDS.TYPE_STRING: st.sampled_from(WORDS),
    KINDS.TYPE_BYTES: st.sampled_from([b"", b"state"]),
}


def values(field: Any) -> st.SearchStrategy[Any]:
    if field.type == KINDS.TYPE_MESSAGE:
        return fields(field.message_type)
    if field.type == KINDS.TYPE_ENUM:
        return st.sampled_from([each.number for each in field.enum_type.values])
    return VALUES[field.type]


def several(field: Any) -> st.SearchStrategy[Any]:
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return st.lists(values(field), max_size=3)
    key, value = (values(entry.fields_by_name[name]) for name in ("key", "value"))
    return st.dictionaries(key, value, max_size=3)


def fields(described: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some fields of a message, as its constructor takes them; of a oneof at most one."""
    plain = {each.name: each for each in described.fields if each.containing_oneof is None}
    plain |= {each.name: each for each in described.fields if _is_optional(each)}
    given = {
        name: several(each) if each.is_repeated else values(each) for name, each in plain.items()
    }
    some = st.fixed_dictionaries({}, optional=given)
    kinds = [
        st.fixed_dictionaries({each.name: values(each)})
        for group in described.oneofs
        for each in group.fields
        if not _is_optional(each)
    ]
    if not kinds:
        return some
    return st.builds(lambda one, other: {**one, **other}, some, st.one_of(kinds))


def _is_optional(field: Any) -> bool:
    group = field.containing_oneof
    return group is not None and group.name.startswith("_")


def messages(kind: type[Message]) -> st.SearchStrategy[Any]:
    return fields(kind.DESCRIPTOR).map(lambda given: kind(**given))
