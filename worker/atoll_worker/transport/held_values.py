"""The values of slices that a process holds: the transport of a learner's head, or a lane process.

What has arrived whole is a *candidate*. `place` copies it into the adopt region of the shared
memory. When the training process has adopted it, `promote` makes it the *base*; `discard` drops one
that a newer one has replaced. So `bases` are always what has been adopted, bit for bit.

An offer is `base - theta`. `formed` forms and encodes it in a thread, and then compares the capture
region's counter with that of the capture that the offer names: when the region has been written
again, there is no offer.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import base_encoding, encoding_of
from atoll_worker.link.messages import Configure
from atoll_worker.transport.numbers import Base, Encoded, Numbers

FORMED_AT_ONCE_MAX = 4  # offers; each takes a thread and as much memory as its slice in f32

Key = tuple[int, int]  # shard and fragment


class Formed(NamedTuple):
    """An offer of what is held of a slice, and its tensors with values that are not finite."""

    encoded: Encoded
    not_finite: tuple[str, ...]


class PreparedParts(NamedTuple):
    """What other processes of the learner have formed; `lost`: somebody has lost the capture."""

    lost: bool
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
        self.captures[key] += 2

    def arrived(self, shard: int, head: pb.Transfer, payload: bytearray) -> None:
        publish = head.publish
        key = shard, publish.version.slice
        base = self.numbers.decode(shard, publish, head.encoding, payload, self.bases.get(key))
        self.candidates[*key, publish.version.version.number] = base

    def place(self, shard: int, fragment: int, number: int) -> None:
        """Where there is no candidate of this number, the base once more."""
        base = self.candidates.get((shard, fragment, number))
        self.numbers.place(shard, fragment, self.bases[shard, fragment] if base is None else base)

    def promote(self, shard: int, fragment: int, number: int) -> None:
        self.bases[shard, fragment] = self.candidates.pop((shard, fragment, number))

    def discard(self, shard: int, fragment: int, number: int) -> None:
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


def publish_bytes(configure: Configure, shard: int, head: pb.Transfer) -> int | None:
    """The bytes of all parts of a Publish; None where it is in no encoding of the run (rule 25)."""
    layout, wire = configure.layout, configure.run_file.sync.wire_down
    part = layout.slice(shard, head.publish.version.slice)
    base = base_encoding(wire)
    whole = base, layout.final_encoding(part, base)
    known = (encoding_of(wire),) if head.publish.difference else whole
    return part.form.byte_count(head.encoding) if head.encoding in known else None
