"""A shard's life on a store that dies at one of its requests, and what the next one finds.

The life is what a shard's process does without sessions: it begins a term, restores or seeds,
removes leftovers, and commits, with a snapshot and what that lets go in between.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import TensorSpec, build_layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.arrays import F32
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.model.effects import MergeOffers, Stage, StoreSeed
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Entry, Participant, TermBegun
from atoll_syncer.model.roster import momentum
from atoll_syncer.numbers.commit import Arrived
from atoll_syncer.numbers.values import TensorValues
from atoll_syncer.storage.files import OBJECTS
from atoll_syncer.storage.journal import Journal, collect, write
from atoll_syncer.storage.versions import Collector
from unit.syncer.log_side import a_commit, a_participant, a_seed
from unit.syncer.values_side import restore

TICKS = 1000
SYNC = Sync(fragments=2, wire_up=Wire.INT8, wire_down=Wire.INT8)
LAYOUT = build_layout(
    [
        TensorSpec(name="embedding", shape=(500, 40), dtype="float32", merge="mean"),
        TensorSpec(name="weight", shape=(300, 100), dtype="float32", merge="rda"),
    ],
    fragments=2,
    shards=1,
)
SLOTS = ("a-0", "b-0", "b-1")
COMMITS = 5
SNAPSHOTS_AFTER = (2, 3, 4)  # commits


class Killed(BaseException):
    """The process ends here."""


@dataclass
class DyingStore:
    """Passes requests on; the one of this number kills, before or after it was done."""

    store: Any
    dies_at: int = 0  # 0: never
    after: bool = False
    requests: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        return partial(self._done, name) if callable(found) else found

    def _done(self, kind: str, *arguments: Any) -> Any:
        self.requests.append(kind)
        dies = len(self.requests) == self.dies_at
        if dies and not self.after:
            raise Killed
        try:
            return getattr(self.store, kind)(*arguments)
        finally:
            if dies:
                raise Killed


def life(store: Any) -> tuple[History, TensorValues]:
    """From the start of a process to the last commit; what was there before is carried on."""
    store.tidy()
    journal = Journal(store, lambda: 7.0)
    history = journal.read()
    values = TensorValues.allocate(LAYOUT, 0, SYNC)
    append(journal, history, TermBegun(epoch=history.epoch + 1, pod="p", instance="i"))
    assert restore(values, history, store) == {}
    collector = Collector(store)
    collector.note(history.live_objects())
    collector.sweep(history.live_objects(), history.epoch)
    if not history.heads:
        begin(values, store, journal, history)
    while history.commits < COMMITS:
        commit(values, store, journal, history)
        collector.note(history.live_objects())
        collector.remove()
        if history.commits in SNAPSHOTS_AFTER:
            write(store, journal.snapshot_of(history), 7.0)
            collect(store)
    Collector(store).sweep(history.live_objects(), history.epoch + 1)
    assert set(store.names(OBJECTS)) == history.live_objects()
    return history, values


def offer(values: TensorValues, fragment: int, base: int, slot: str) -> Arrived:
    """The offer that this slot makes on this base, whichever process asks."""
    generator = np.random.default_rng(base * 100 + fragment * 10 + SLOTS.index(slot))
    count = LAYOUT.slice(0, fragment).element_count
    delta = generator.standard_normal(count, F32) * F32.type(0.01)
    head = pb.Transfer(offer=pb.Offer(slice=fragment, base=base), encoding=pb.INT8)
    return values.examine(head, bytearray(arrays.encode(delta, pb.INT8)))


def seed(values: TensorValues, fragment: int) -> Arrived:
    head = pb.Transfer(seed=pb.Seed(slice=fragment), encoding=pb.F32)
    count = LAYOUT.slice(0, fragment).element_count
    return values.examine(head, bytearray(np.linspace(-1, 1, count, dtype=F32)))


def begin(values: TensorValues, store: Any, journal: Journal, history: History) -> None:
    """Version 0."""
    for fragment in range(LAYOUT.fragments):
        values.keep(1, fragment, seed(values, fragment))
    outcomes = []
    for making in values.begin_seed(StoreSeed(1), "run", history.epoch):
        making.compute()
        outcomes.append(making.write(store))
    seeded = a_seed(
        tuple(outcome.digest for outcome in outcomes),
        tuple(outcome.object for outcome in outcomes),
        tensors=(),
        layout_digest=LAYOUT.digest,
        epoch=history.epoch,
    )
    append(journal, history, seeded)
    for fragment in range(LAYOUT.fragments):
        values.committed(fragment)


def commit(values: TensorValues, store: Any, journal: Journal, history: History) -> None:
    """The next version: each slot's offer on the newest one of the slice whose turn it is."""
    fragment = history.commits % LAYOUT.fragments
    base = history.heads[fragment].number
    participants = tuple(participant(slot, base) for slot in SLOTS)
    for p in participants:
        name = Stage(p.slot, p.incarnation, fragment, p.capture)
        values.stage(name, offer(values, fragment, base, p.slot))
    merges = history.heads[fragment].merges
    mu = momentum(SYNC, merges, TICKS)
    making = values.begin_merge(MergeOffers(fragment, participants, mu), "run", history.epoch)
    making.compute()
    outcome = making.write(store)
    entry = a_commit(
        outcome.number,
        outcome.slice,
        epoch=history.epoch,
        digest=outcome.digest,
        object=outcome.object,
        participants=participants,
        momentum=mu,
        merges=merges + 1,
    )
    append(journal, history, entry)
    values.committed(fragment)


def append(journal: Journal, history: History, entry: Entry) -> None:
    journal.append(entry)
    history.apply(entry)


def participant(slot: str, base: int) -> Participant:
    weight = 2500.0 + len(slot) * SLOTS.index(slot)
    return a_participant(slot, 4, base=base, steps=4, tokens=100, cursor=base, weight=weight)


def found(lived: tuple[History, TensorValues]) -> list[Any]:
    """By slice: number and digest of the newest version, its merges, master and momentum."""
    history, values = lived
    return [
        (
            head.number,
            head.digest,
            head.merges,
            values.slices[fragment].master.tobytes(),
            values.slices[fragment].momentum.tobytes(),
        )
        for fragment, head in sorted(history.heads.items())
    ]
