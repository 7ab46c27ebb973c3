"""Writes the event tape, and with `atoll run --record` what versions are made from (rule 29).

The tape has one JSON object a line (docs/run-folder.md). A line waits until the disk has room for
it, and the shard waits for no line. A record is for `atoll replay`:

    RUN/record/<shard>/snapshots/<slice>.json             the version with which it begins
    RUN/record/<shard>/log/<slice>-<number>-<epoch>.json  how each version after it was made
    RUN/record/<shard>/objects/                           values of the first; offers as they came

The record of a shard has the form of a store, and no file of it is ever changed. The thread MERGE
writes a version's file after its offers, between the version's object and its entry in the log. So
no durable version lacks its record. A process that is killed in between leaves the file of a
version that no entry names; a later term makes another one of that number, and of two the higher
epoch counts. A record continues only from a version that is in it, by number and epoch, so what an
earlier process could not write is no difference later.

A record decides nothing. What cannot be written is not tried again: the record of this process
ends, and training continues. It ends also before it fills a volume, whose room the log may need.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import documents
from atoll_protos.job.run_file import Sync
from atoll_protos.names import split_slot
from atoll_syncer.duties.background import Background, Thread
from atoll_syncer.duties.port import Machine
from atoll_syncer.model.effects import MergeOffers
from atoll_syncer.model.history import HeadVersion
from atoll_syncer.model.log import Participant, check_order
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.offers import commit_again
from atoll_syncer.storage.files import (
    LOG,
    SNAPSHOTS,
    FileStore,
    Store,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMissing,
    copy_object,
    storage_errors,
)
from atoll_syncer.storage.journal import DamagedError, with_checksum, without_checksum

if TYPE_CHECKING:
    from atoll_syncer.numbers.commit import Arrived
    from atoll_syncer.numbers.values import StoredVersion, TensorValues


FREE_SHARE_MIN: Final = 0.05

log = structlog.get_logger()


class LinkEnd(NamedTuple):
    """Whose bytes: of a region's learners, or without one of observers and exports.

    `machine` is the one that the peer's certificate names; empty where it names none (rule 41).
    """

    region: str = ""
    machine: str = ""


NO_LEARNER: Final = LinkEnd()


class Recording:
    """It also counts what this process has received and sent in bulk."""

    def __init__(self, state: ShardState, machine: Machine, background: Background) -> None:
        self._state, self._machine, self._background = state, machine, background
        # Of bulk frames, in this process.
        self.received_bytes, self.sent_bytes = Counter[LinkEnd](), Counter[LinkEnd]()
        for region in ("", *(each.name for each in state.run_file.regions)):
            machine.metrics.received_bytes.labels(region)
            machine.metrics.sent_bytes.labels(region)

    @property
    def bytes_received(self) -> int:
        return self.received_bytes.total()

    @property
    def bytes_sent(self) -> int:
        return self.sent_bytes.total()

    @property
    def links(self) -> dict[LinkEnd, tuple[int, int]]:
        """Bytes up and down."""
        ends = sorted(self.received_bytes.keys() | self.sent_bytes.keys())
        return {each: (self.received_bytes[each], self.sent_bytes[each]) for each in ends}

    def end_of(self, session: int, machine: str) -> LinkEnd:
        """Of a stream of the learner that has this session, or of an observer."""
        known = self._state.sessions.open.get(session)
        if known is None or not known.slot:
            return NO_LEARNER
        return LinkEnd(split_slot(known.slot)[0], machine)

    def received(self, byte_count: int, end: LinkEnd) -> None:
        self.received_bytes[end] += byte_count
        self._machine.metrics.received_bytes.labels(end.region).inc(byte_count)

    def sent(self, byte_count: int, end: LinkEnd = NO_LEARNER) -> None:
        self.sent_bytes[end] += byte_count
        self._machine.metrics.sent_bytes.labels(end.region).inc(byte_count)

    def write(self, record: dict[str, Any]) -> None:
        by_region = dict[str, tuple[int, int]]()
        machines = dict[str, dict[str, tuple[int, int]]]()
        for (region, machine), (up, down) in self.links.items():
            before = by_region.get(region, (0, 0))
            by_region[region] = (before[0] + up, before[1] + down)
            if machine:
                machines.setdefault(region, {})[machine] = (up, down)
        bytes_moved = {
            "bytes_up": self.bytes_received,
            "bytes_down": self.bytes_sent,
            "links": by_region,
            **({"machines": machines} if machines else {}),
        }
        run = self._state.history.run
        trouble = self._machine.tape.write(run, {**record, **bytes_moved})
        if trouble is not None:
            log.warning("the tape waits", trouble=str(trouble))

    def close(self) -> None:
        self.write({"event": "end", "epoch": self._state.term.epoch})
        self._machine.tape.close()

    async def fill(self) -> None:
        """Begin with the tape: the lines of commits whose process was killed first (rule 29).

        The record of this term is durable, so no other process can add a commit any more.
        """
        journal = self._machine.journal
        try:
            self._machine.tape.begin()
        except StoreError as error:
            log.warning("the tape cannot be opened", trouble=str(error))
        lowest: dict[int, int] = {}
        commits = [(each.time, each.entry) for each in journal.commits]
        for _, entry in commits:
            lowest[entry.slice] = min(entry.number, lowest.get(entry.slice, entry.number))
        try:
            known = await self._background.run(
                Thread.TIDY, lambda: self._machine.tape.commits(lowest)
            )
        except StoreError as error:
            log.warning("the tape cannot be read", trouble=str(error))
            return
        for time, entry in commits:
            if (entry.slice, entry.number, entry.epoch) not in known:
                self.write({"time": time, **commit_again(self._state, entry)})
        journal.commits.clear()


NAMED: Final = re.compile(rf"{LOG}(\d+)-(\d+)-(\d+)\.json")
ANOTHER: Final = "record the run again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStart:
    """The version with which a slice's record begins, how the model is cut, and spec.sync."""

    run: str
    shards: int
    fragments: int
    tensors: tuple[Mapping[str, Any], ...]
    layout_digest: str
    sync: Sync
    head: HeadVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOffer:
    """An offer that was merged: whose it was, how it is encoded, and the object with its bytes."""

    participant: Participant
    encoding: pb.Encoding
    object: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMerge:
    """How a version was made from the one before it: of offers in this order."""

    time: float  # Unix seconds, for people
    momentum: float
    last: bool
    offers: tuple[RecordedOffer, ...]
    digest: str  # of the version's base
    object: str  # the name, by content, of what the shard has stored of it

    def __post_init__(self) -> None:
        check_order(offer.participant for offer in self.offers)


def start_name(slice_: int) -> str:
    return f"{SNAPSHOTS}{slice_}.json"


def merge_name(slice_: int, number: int, epoch: int) -> str:
    return f"{LOG}{slice_}-{number}-{epoch}.json"


def read(store: Store, name: str, kind: type) -> Any:
    """Read a RecordStart or RecordedMerge. StoreMissing, StoreCorrupt or StoreUnavailable."""
    try:
        return documents.from_document(kind, without_checksum(store.read(name)))
    except (DamagedError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(name, f"it is damaged: {error}", ANOTHER) from error


def versions(store: Store, slice_: int) -> dict[int, int]:
    """By number of a recorded version: the epoch that counts. Raises StoreUnavailable."""
    epochs: dict[int, int] = {}
    for match in filter(None, map(NAMED.fullmatch, store.names(LOG))):
        of_slice, number, epoch = map(int, match.groups())
        if of_slice == slice_:
            epochs[number] = max(epoch, epochs.get(number, 0))
    return epochs


class MergeUnderWay(NamedTuple):
    """A merge whose offers, by slot, stay in memory until they are recorded."""

    effect: MergeOffers
    head: HeadVersion
    offers: "dict[str, Arrived]"


def check_room(folder: Path) -> None:
    """Raise StoreFull where what may be left out would soon take the room of a volume's others."""
    with storage_errors(folder):
        volume = shutil.disk_usage(folder)
    if volume.free < FREE_SHARE_MIN * volume.total:
        reason = f"less than {FREE_SHARE_MIN:.0%} of its volume is free"
        raise StoreFull(os.fspath(folder), reason, "make room there")


class MergeRecorder:
    """See the module. `_epochs` has those of the recorded versions, by slice and number."""

    def __init__(self, state: ShardState, machine: Machine, background: Background) -> None:
        self._state, self._machine, self._background = state, machine, background
        folder, self._merges = machine.record or (None, 0)  # of each slice
        self._place = FileStore(folder) if folder else None
        self._under_way: dict[int, MergeUnderWay] = {}  # by slice
        self._epochs: dict[int, dict[int, int]] = {}
        self._ended = set[int]()  # slices

    def take(self, values: "TensorValues", effect: MergeOffers) -> None:
        """Keep the offers of a merge that begins in memory, if it is to be recorded."""
        slice_ = effect.slice
        if self._place is not None and slice_ not in self._ended:
            head = self._state.history.heads[slice_]
            self._under_way[slice_] = MergeUnderWay(effect, head, values.staged(effect))

    async def write(self, outcome: "StoredVersion") -> None:
        """Record how a version was merged that is stored, and that no entry names yet."""
        merge = self._under_way.pop(outcome.slice, None)
        if merge is None or self._place is None:
            return
        epoch = self._state.history.epoch
        work = partial(self._write, self._place, merge, outcome, epoch)
        try:
            await self._background.run(Thread.MERGE, work)
        except StoreError as error:
            self._machine.metrics.store_troubles.labels(error.kind).inc()
            log.warning("merges are not recorded any more", reason=str(error))
            self._place = None

    def _write(
        self, place: FileStore, merge: MergeUnderWay, outcome: "StoredVersion", epoch: int
    ) -> None:
        slice_, number, head = outcome.slice, outcome.number, merge.head
        if slice_ not in self._epochs:
            self._epochs[slice_] = self._begin(place, slice_, head)
        epochs = self._epochs[slice_]
        known = epochs.get(head.number) == head.epoch
        if not known or number > min(epochs) + self._merges:
            reason = "it is as long as asked for" if known else f"it lacks version {head.number}"
            log.info("the record of a slice ends", slice=slice_, reason=reason)
            self._ended.add(slice_)
            return
        check_room(place.root)
        store, written = place.below(str(self._state.number)), list[RecordedOffer]()
        for p in merge.effect.participants:
            if p.slot not in outcome.found.left_out:
                data = merge.offers[p.slot].values
                name = store.put([data.data], epoch)
                written.append(RecordedOffer(participant=p, encoding=data.encoding, object=name))
        recorded = RecordedMerge(
            time=self._machine.journal.clock(),
            momentum=merge.effect.momentum,
            last=merge.effect.last,
            offers=tuple(written),
            digest=outcome.digest,
            object=outcome.object,
        )
        document = with_checksum(documents.to_document(recorded))
        store.create(merge_name(slice_, number, epoch), document)
        epochs[number] = epoch

    def _begin(self, place: FileStore, slice_: int, head: HeadVersion) -> dict[int, int]:
        """Return the epochs, by number, of versions from which a slice's record may continue."""
        state, store = self._state, place.below(str(self._state.number))
        store.open()
        try:
            start: RecordStart = read(store, start_name(slice_), RecordStart)
        except StoreMissing:
            assert state.layout is not None, "a version without a layout"
            copy_object(self._machine.store, store, head.object)  # a link, or a copy
            start = RecordStart(
                run=state.history.run,
                shards=state.run_file.shards,
                fragments=len(state.layout.shard_slices(state.number)),
                tensors=state.history.tensors,
                layout_digest=state.history.layout_digest,
                sync=state.run_file.sync,
                head=head,
            )
            store.create(start_name(slice_), with_checksum(documents.to_document(start)))
        begun = {start.head.number: start.head.epoch}
        same = start.run == state.history.run  # else all of this run was lost once (rule 43)
        return versions(store, slice_) | begun if same else {}
