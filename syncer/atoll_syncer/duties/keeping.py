"""What a shard keeps beside the versions of its slices: data states, the companion, and the export.

They are bytes that mean nothing to the rules, whose names stand in the log: written before the
entry that names them. The companion is written in TIDY, since it may be large and no version waits
for it; the rest in MERGE, after what it belongs to.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.history import History
from atoll_syncer.model.state import ShardState
from atoll_syncer.storage import companions, data_states
from atoll_syncer.storage.export import ExportPart, encode_part
from atoll_syncer.storage.store import StoreCorrupt, StoreMissing
from atoll_syncer.storage.versions import VersionOrigin

if TYPE_CHECKING:
    from atoll_syncer.numbers.values import StoredVersion, TensorValues

PIECE_BYTES: Final = 1 << 20

log = structlog.get_logger()


class Keeping:
    """See the module."""

    def __init__(self, machine: Machine, background: Background) -> None:
        self._machine, self._background = machine, background
        self._store = machine.store

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
        self, state: ShardState, outcome: "StoredVersion", kept: Mapping[str, bytes]
    ) -> str:
        """The object's name; empty where no merged offer has a data state."""
        merged = {slot: each for slot, each in kept.items() if slot not in outcome.found.left_out}
        if not merged:
            return ""
        origin = VersionOrigin(
            run=state.history.run,
            shard=state.number,
            slice=outcome.slice,
            number=outcome.number,
            epoch=state.history.epoch,
        )
        return await self._background.until_stored(
            Thread.MERGE, lambda: data_states.write(self._store, origin, merged)
        )

    async def write_companion(self, history: History, part: int, payload: bytearray) -> str:
        run, epoch = history.run, history.epoch
        return await self._background.until_stored(
            Thread.TIDY, lambda: companions.write_part(self._store, run, epoch, part, payload)
        )

    def export_pieces(self, state: ShardState, values: "TensorValues") -> Iterator[pb.ExportPiece]:
        """Of the values as they are now, and the companion; each piece may be made in a thread."""
        assert state.layout is not None, "values before a layout"
        run, shard, history = state.history.run, state.number, state.history
        yield pb.ExportPiece(run=run, tick=state.clock.tick, model=state.layout.to_model())
        yield from _file_pieces(0, encode_part(run, shard, values.exported()))
        for number, names in enumerate((history.companion, history.companion_changed), start=1):
            yield from _file_pieces(number, companions.read_parts(self._store, names))

    async def export_part(self, run: str, shard: int, values: "TensorValues") -> ExportPart:
        return await self._background.until_stored(
            Thread.MERGE, lambda: self._machine.exporter.write_part(run, shard, values.exported())
        )

    async def export_whole(
        self, history: History, layout: Layout, parts: Sequence[ExportPart]
    ) -> None:
        both = history.companion, history.companion_changed
        await self._background.until_stored(
            Thread.MERGE,
            lambda: self._machine.exporter.assemble(
                history.run, layout, parts, [companions.read_parts(self._store, n) for n in both]
            ),
        )


def _file_pieces(number: int, parts: Iterable[Buffer]) -> Iterator[pb.ExportPiece]:
    """One file, whose last piece has its digest."""
    digest = hashlib.sha256()
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            data = bytes(memoryview(part)[start : start + PIECE_BYTES])
            digest.update(data)
            yield pb.ExportPiece(file=number, data=data)
    yield pb.ExportPiece(file=number, digest=digest.hexdigest())
