"""What a shard keeps beside the versions of its slices: data states, the companion, and the export.

The data states of learners and the companion of the export are bytes that mean nothing to the
rules; their names stand in the log. They are written before the entry that names them and read at a
start, or when a session asks for one. The export is written at the end of the job: each shard's
part, and by the registrar the index that makes one model of all parts.

Data states and export are written in the thread MERGE, after what they belong to; the companion in
TIDY, since it may be large and no version waits for it. While the store is full or cannot be
reached each of them waits.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from atoll_protos.layout import Layout
from atoll_syncer.background import Background, Thread
from atoll_syncer.model.history import History
from atoll_syncer.numbers.values import Outcome
from atoll_syncer.outside import Machine, Values
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage import companions, data_states
from atoll_syncer.storage.export import Part
from atoll_syncer.storage.store import StoreCorrupt, StoreMissing
from atoll_syncer.storage.versions import Origin

log = structlog.get_logger()


class Keeping:
    """See the module."""

    def __init__(self, machine: Machine, background: Background) -> None:
        self._machine, self._background = machine, background
        self._store = machine.store

    # ------------------------------------------------------------ data states

    async def read_data_states(self, named: Mapping[str, str]) -> dict[str, bytes]:
        """Those that the history names, by slot; what is damaged or gone is left out."""
        found = dict[str, bytes]()
        for name in sorted(set(named.values())):
            try:
                states = await self._background.until_stored(
                    Thread.MERGE, partial(data_states.read, self._store, name)
                )
            except (StoreCorrupt, StoreMissing) as trouble:
                slots = sorted(slot for slot, each in named.items() if each == name)
                log.error("data states are lost", slots=slots, trouble=str(trouble))
                self._machine.metrics.store_troubles.labels(trouble.kind).inc()
            else:
                found |= {slot: each for slot, each in states.items() if named.get(slot) == name}
        return found

    async def write_data_states(
        self, shard: Shard, outcome: Outcome, kept: Mapping[str, bytes]
    ) -> str:
        """The object's name; empty where no merged offer has a data state."""
        merged = {slot: each for slot, each in kept.items() if slot not in outcome.left_out}
        if not merged:
            return ""
        origin = Origin(
            run=shard.history.run,
            shard=shard.number,
            slice=outcome.slice,
            number=outcome.number,
            epoch=shard.history.epoch,
        )
        return await self._background.until_stored(
            Thread.MERGE, lambda: data_states.write(self._store, origin, merged)
        )

    # ------------------------------------------------------------ the companion

    async def write_companion(self, history: History, part: int, payload: bytearray) -> str:
        """One part of it; the object's name."""
        origin = companions.Origin(run=history.run, epoch=history.epoch, part=part)
        return await self._background.until_stored(
            Thread.TIDY, lambda: companions.write_part(self._store, origin, payload)
        )

    async def read_companion(self, name: str) -> bytes:
        """A part of it, by its object's name. Raises StoreError."""
        return await self._background.run(
            Thread.TIDY, lambda: companions.read_part(self._store, name)
        )

    # ------------------------------------------------------------ the export

    async def export_part(self, run: str, shard: int, values: Values) -> Part:
        """This shard's part of the finished model."""
        return await self._background.until_stored(
            Thread.MERGE,
            lambda: self._machine.exporter.write_part(run, shard, values.exported()),
        )

    async def export_whole(self, history: History, layout: Layout, parts: Sequence[Part]) -> None:
        """The index over all parts, with what the companion holds beside the values."""
        await self._background.until_stored(
            Thread.MERGE,
            lambda: self._machine.exporter.assemble(
                history.run,
                layout,
                parts,
                (
                    companions.read_parts(self._store, history.companion),
                    companions.read_parts(self._store, history.companion_changed),
                ),
            ),
        )
