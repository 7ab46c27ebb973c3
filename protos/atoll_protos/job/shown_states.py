"""What shards and slots do, in the words that people see: SHARD_SERVING is `Serving`.

A number that this version does not know is `Unknown`. Code compares the enums of v1/atoll.proto.
"""

from typing import Final

import atoll_protos.v1.atoll_pb2 as pb

UNKNOWN: Final = "Unknown"


def _texts(names: dict[str, int], prefix: str) -> dict[int, str]:
    return {
        number: name.removeprefix(prefix).title() for name, number in names.items() if number != 0
    }


SHARD_TEXTS: Final = _texts(dict(pb.ShardState.items()), "SHARD_")
SLOT_TEXTS: Final = _texts(dict(pb.SlotState.items()), "SLOT_")


def shard_text(state: int) -> str:
    return SHARD_TEXTS.get(state, UNKNOWN)


def slot_text(state: int) -> str:
    return SLOT_TEXTS.get(state, UNKNOWN)
