"""Keeps what versions are made from, for a replay: `spec.checkpoint.record` (rule 29).

The thread MERGE writes it between a version's object and its entry, so no durable version lacks it.
It decides nothing and changes no bit of a version. What cannot be written is not tried again: the
record of this process ends, and training goes on. It ends as well before it fills a volume, whose
room the log may need.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog

from atoll_syncer.checkpoints import merge_records
from atoll_syncer.checkpoints.merge_records import RecordedMerge, RecordedOffer, RecordStart
from atoll_syncer.checkpoints.places import check_room
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.outside import Machine
from atoll_syncer.model.effects import MergeOffers
from atoll_syncer.model.history import HeadVersion, History
from atoll_syncer.model.state import ShardState
from atoll_syncer.storage.store import StoreError, StoreMissing

if TYPE_CHECKING:
    from atoll_syncer.checkpoints.places import Place
    from atoll_syncer.numbers.arrivals import Arrived
    from atoll_syncer.numbers.values import StoredVersion, TensorValues

NOTHING_LEFT = range(0)

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MergedOffers:
    """A merge whose offers must stay in memory until they are recorded."""

    effect: MergeOffers
    offers: Mapping[str, "Arrived"]  # by slot
    rounding: str  # see numbers/merge


class KeepingMerges:
    """See the module. `_left` has, by slice, the numbers of versions that are to be recorded."""

    def __init__(self, state: ShardState, machine: Machine, background: Background) -> None:
        self._state, self._machine, self._background = state, machine, background
        self._place: Place | None = None
        plan, open_place = machine.run_file.recorded, machine.open_place
        self._commits = plan.commits if plan is not None else 0  # of each slice
        self._open = partial(open_place, plan.url) if plan is not None and open_place else None
        self._left: dict[int, range] = {}
        self._taken: dict[int, MergedOffers] = {}  # by slice
        self._name = merge_records.of_shard(state.number)
        self._recorded: dict[int, dict[int, int]] = {}  # as it was when this process came

    def take(self, values: "TensorValues", effect: MergeOffers) -> None:
        """A merge begins: keep its offers in memory, if it is to be recorded."""
        if self._open is not None and self._left.get(effect.slice) != NOTHING_LEFT:
            offers, rounding = values.staged(effect), values.rounding
            self._taken[effect.slice] = MergedOffers(
                effect=effect, offers=offers, rounding=rounding
            )

    async def write(self, outcome: "StoredVersion") -> None:
        """The version is stored, and no entry names it yet. Records what was taken of its merge."""
        merged = self._taken.pop(outcome.slice, None)
        if merged is None or self._open is None:
            return
        history = self._state.history
        work = partial(self._write, merged, outcome, history, history.heads[outcome.slice])
        try:
            await self._background.run(Thread.MERGE, work)
        except StoreError as error:
            self._machine.metrics.store_troubles.labels(error.kind).inc()
            log.warning("merges are not recorded any more", reason=str(error))
            self._open = None

    def _write(
        self, merged: MergedOffers, outcome: "StoredVersion", history: History, head: HeadVersion
    ) -> None:
        slice_, number, epoch = outcome.slice, outcome.number, history.epoch
        if slice_ not in self._left:
            self._left[slice_] = self._begin(slice_, head)
        left = self._left[slice_]
        if not left:
            return
        if number != left.start:
            self._end(slice_, f"version {left.start} was not made by a merge")
            return
        store = self._opened().part(self._name)
        check_room(self._opened())
        written = [
            RecordedOffer(
                participant=p,
                encoding=merged.offers[p.slot].values.encoding,
                object=merge_records.write_offer(store, merged.offers[p.slot].values.data, epoch),
            )
            for p in merged.effect.participants
            if p.slot not in outcome.found.left_out
        ]
        found = RecordedMerge(
            run=history.run,
            shard=self._state.number,
            slice=slice_,
            number=number,
            epoch=epoch,
            time=self._machine.journal.clock(),
            before=head.digest,
            rounding=merged.rounding,
            momentum=merged.effect.momentum,
            last=merged.effect.last,
            offers=tuple(written),
            digest=outcome.digest,
            object=outcome.object,
        )
        merge_records.write(store, merge_records.merge_name(slice_, number, epoch), found)
        self._left[slice_] = range(number + 1, left.stop)
        if not self._left[slice_]:
            self._end(slice_, "it has as many merges as were asked for")

    def _begin(self, slice_: int, head: HeadVersion) -> range:
        """The versions of the slice that are to be recorded, the head's successor first."""
        store = self._opened().part(self._name)
        try:
            start = merge_records.read_start(store, self._state.number, slice_)
        except StoreMissing:
            start = self._start(slice_, head)
        if start.run != self._state.history.run:
            return self._end(slice_, f"the place has that of run {start.run}; give another place")
        known = self._recorded.get(slice_, {})
        first = start.head.number + 1
        gap = next((n for n in range(first, head.number + 1) if n not in known), None)
        stop = first + self._commits
        if gap is not None and gap < stop:
            return self._end(slice_, f"version {gap} is not in it")
        return range(head.number + 1, stop)

    def _start(self, slice_: int, head: HeadVersion) -> RecordStart:
        """Begin with the head: its object is copied where it cannot be linked."""
        state, layout = self._state, self._state.layout
        assert layout is not None, "a version without a layout"
        place = self._opened()
        place.take(self._machine.store, self._name, head.object)
        start = RecordStart(
            run=state.history.run,
            shard=state.number,
            shards=state.run_file.shards,
            slice=slice_,
            fragments=len(layout.shard_slices(state.number)),
            tensors=state.history.tensors,
            layout_digest=state.history.layout_digest,
            sync=dataclasses.asdict(state.run_file.sync),
            head=head,
        )
        merge_records.write(place.part(self._name), merge_records.start_name(slice_), start)
        return start

    def _end(self, slice_: int, reason: str) -> range:
        log.info("the record of a slice ends", slice=slice_, reason=reason)
        self._left[slice_] = NOTHING_LEFT
        return NOTHING_LEFT

    def _opened(self) -> "Place":
        if self._place is None:
            assert self._open is not None, "nothing is to be recorded"
            place = self._open()
            self._recorded = merge_records.recorded(place.make_part(self._name))
            self._place = place
        return self._place
