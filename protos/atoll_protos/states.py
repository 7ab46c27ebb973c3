"""What shards and slots do, in the words that people see: one text for each enum value.

The states themselves, with their meaning, are `ShardState` and `SlotState` of v1/atoll.proto. A
text is the value's name without its prefix: `SHARD_SERVING` is `Serving`. The texts stand in the
status of a job, in labels of metrics, in the tape and in the live table; code compares the enums.
A number that this version does not know (a shard of another version sent it) is `Unknown`.
"""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb

UNKNOWN: Final = "Unknown"


def _texts(names: dict[str, int], prefix: str) -> dict[int, str]:
    """By number; the value 0, which an absent field has, is no state."""
    return {
        number: name.removeprefix(prefix).title() for name, number in names.items() if number != 0
    }


SHARD_TEXTS: Final = _texts(dict(pb.ShardState.items()), "SHARD_")
SLOT_TEXTS: Final = _texts(dict(pb.SlotState.items()), "SLOT_")


def shard_text(state: int) -> str:
    """Starting, Seeding, Recovering, Serving, Final, Complete or Failed; else Unknown."""
    return SHARD_TEXTS.get(state, UNKNOWN)


def slot_text(state: int) -> str:
    """Joining, Recovering, Training, Stalled, Lost or Left; else Unknown."""
    return SLOT_TEXTS.get(state, UNKNOWN)
