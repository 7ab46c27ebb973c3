"""The values of slices that this process holds, on their way to the model and away from it.

The transport of a learner's head holds them, and so does each lane process for its share of every
slice. Both do the same with them; the head decides when.

A version on its way to the model passes three places. What has arrived whole is a *candidate*.
`place` copies it into the adopt region of the shared memory. When the training process has adopted
it, `promote` makes the candidate the *base*; `discard` drops one that a newer one has replaced. So
`bases` are always what the training process really has adopted, bit for bit.

An offer is `base - theta` of one slice. The training process copies theta into the capture region
at a step boundary, and the region's counter is odd while it writes. `formed` forms and encodes the
difference in a thread, so that no message waits for it. Then it compares the counter with that of
the capture that the offer names: when the region has been written again, there is no offer.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.codecs import base_encoding, encoding_of
from atoll_protos.layout import Layout
from atoll_protos.run import Sync
from atoll_worker.transport.numbers import Base, Encoded, Numbers

FORMED_AT_ONCE_MAX = 4  # offers; each takes a thread and as much memory as its slice in f32

Key = tuple[int, int]  # shard and fragment


class Formed(NamedTuple):
    """An offer of what is held of a slice, and its tensors with values that are not finite."""

    encoded: Encoded
    not_finite: tuple[str, ...]


@dataclass(slots=True)
class Values:
    """See the module."""

    numbers: Numbers
    bases: dict[Key, Base] = field(default_factory=dict)  # as adopted
    candidates: dict[tuple[int, int, int], Base] = field(default_factory=dict)  # with their number
    captures: dict[Key, int] = field(default_factory=dict)  # counter of the newest finished capture
    _threads: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(FORMED_AT_ONCE_MAX)
    )

    def begin(self, keys: Iterable[Key]) -> None:
        """Every capture region holds the model as it was made."""
        self.captures = {key: self.numbers.counter(*key) for key in keys}

    def captured(self, key: Key) -> None:
        """The training process has finished one more capture of a slice."""
        self.captures[key] += 2

    def arrived(self, shard: int, head: pb.Transfer, payload: bytearray) -> None:
        """A Publish is here: decode it, and keep it as a candidate."""
        publish = head.publish
        key = shard, publish.version.slice
        base = self.numbers.decode(shard, publish, head.encoding, payload, self.bases.get(key))
        self.candidates[*key, publish.version.version.number] = base

    def place(self, shard: int, fragment: int, number: int) -> None:
        """Copy a candidate into its adopt region; where there is none, the base, once more."""
        base = self.candidates.get((shard, fragment, number))
        self.numbers.place(shard, fragment, self.bases[shard, fragment] if base is None else base)

    def promote(self, shard: int, fragment: int, number: int) -> None:
        """The training process has adopted the candidate."""
        self.bases[shard, fragment] = self.candidates.pop((shard, fragment, number))

    def discard(self, shard: int, fragment: int, number: int) -> None:
        """A newer one has arrived."""
        self.candidates.pop((shard, fragment, number), None)

    async def formed(self, key: Key, base: Base, counter: int) -> Formed | None:
        """The difference to the capture of this count; None if the region has another one."""
        async with self._threads:
            difference = await asyncio.to_thread(self.numbers.difference, *key, base)
            if self.numbers.counter(*key) != counter:
                return None
            bad = await asyncio.to_thread(self.numbers.not_finite, *key, difference)
            encoded = await asyncio.to_thread(self.numbers.encode_difference, *key, difference)
            return Formed(encoded, bad)


def publish_bytes(layout: Layout, sync: Sync, shard: int, head: pb.Transfer) -> int | None:
    """How many bytes a Publish of a known slice must have, all parts together.

    None where it is in no encoding of the run (rule 25).
    """
    part = layout.slice(shard, head.publish.version.slice)
    base = base_encoding(sync.wire_down)
    whole = base, layout.final_encoding(part, base)
    known = (encoding_of(sync.wire_down),) if head.publish.difference else whole
    return part.form.byte_count(head.encoding) if head.encoding in known else None
