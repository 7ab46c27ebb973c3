"""All slices of one shard in memory: masters, momentum, bases, staged offers.

For each slice the shard holds an f32 master and its momentum, the head (the newest durable base)
and, while a commit is under way, the coming version. What arrives from learners waits here until
the rules say what it is for.

    arrived, verified --Stage--> staged --Merge--> merged into the coming version
                         |                 |
                         |                 +--Drop--> forgotten
                         +--keep--> seed or held version --StoreSeed, StoreHeld--> coming version

    coming version:   begin_* --compute--> in memory --write--> on disk --committed--> head
                      (loop)    (thread)              (thread)            (loop)

Every version goes through the same four steps, whether it comes from a merge, a seed or a held
version:

1. `begin_merge`, `begin_seed` or `begin_held` takes what the version is made from out of the
   memory of arrivals, in the event loop, and returns a `VersionInMaking`, at most one of a slice.
   From now on nothing else may touch the slice's master and momentum.
2. `compute`, once, in a thread: writes the new master and momentum in place, and makes the
   new base in memory of its own. The old base stays the head, which is published meanwhile.
3. `write`, in a thread, again and again while the store is full or unreachable: stores the
   object and returns its name and the digest of the base. Nothing depends on it yet.
4. `committed`, in the event loop, when the log's entry that names the version is durable: the
   coming version becomes the head. Before that no receiver gets it whole (rule 19).

Why this is safe:

- The master is changed before the entry is durable. If the process dies in between, the next one
  restores the head from its object and computes the round again, or another one; no receiver has
  seen the lost version. If the process is deposed, it exits.
- Payloads given out by `publish_payload` are views of bases, which are never written to once made.
  So a slow receiver reads the version that it was promised, whatever is committed meanwhile.
- Threads and scratch of the merge are shared by all slices: the caller computes one version after
  the other, and examines one transfer after the other, each in a thread of its own.

Memory per element: 8 bytes for master and momentum, 2 or 4 for the head, as much again while a
commit is under way, and the encoded size of each staged offer. Bases are allocated as they come.

The event loop calls every method, but for those that say that they may run in another thread:
`examine`, `restore`, and the two methods of `VersionInMaking`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.allocator import memory_byte_count_max
from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer import arrays
from atoll_protos.transfer.arrays import F32, Array, Base
from atoll_protos.transfer.codecs import base_encoding, encoding_of
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.model.effects import (
    Drop,
    MergeOffers,
    Stage,
    StoreHeld,
    StorePrevious,
    StoreSeed,
)
from atoll_syncer.model.history import HeadVersion
from atoll_syncer.model.log import SliceTensors, round_master
from atoll_syncer.model.roster import NOTHING_FOUND, MergeFindings
from atoll_syncer.numbers.commit import (
    Arrived,
    NormHistory,
    Published,
    Recipe,
    TransferError,
    advance_finite,
    cosines,
    examine,
    norm_of,
    recipe,
    too_far,
)
from atoll_syncer.numbers.workers import Workers
from atoll_syncer.storage.export import as_learners_hold
from atoll_syncer.storage.files import Objects, Store
from atoll_syncer.storage.versions import VersionOrigin, read_slice, write_slice

NOT_FINITE: Final = "its values would have made the version not finite"
STATE_BYTES = 8  # of an element: master and momentum, both f32

OfferName = tuple[str, int, int, int]  # slot, incarnation, slice, capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A base in memory and, on an integer wire, the bytes that lead to it from the one before."""

    number: int
    base: Base
    difference: Buffer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The values of one Publish. `data` never changes, whatever is committed meanwhile."""

    encoding: pb.Encoding
    difference: bool
    data: Buffer


@dataclass(slots=True, kw_only=True)
class SliceValues:
    """One slice's memory. `coming` becomes the head when its entry is durable."""

    fragment: int
    recipe: Recipe
    master: Array  # f32[n]
    momentum: Array  # f32[n]
    head: Version | None = None
    coming: Version | None = None


class VersionInMaking:
    """One version in the making: `compute` once, then `write` until the store takes it.

    Both take long and belong in a thread. The next version of the slice begins only when this
    one is committed.
    """

    def __init__(
        self, part: SliceValues, origin: VersionOrigin, make: Callable[[], Published] | None = None
    ) -> None:
        self.origin = origin
        self.make = make
        self.found = NOTHING_FOUND  # by `make`
        self._part = part

    def compute(self) -> None:
        """Make the version in memory."""
        assert self.make is not None, "computed already"
        made = self.make()
        self.make = None  # frees the offers as well
        self._part.coming = Version(
            number=self.origin.number, base=made.base, difference=made.difference
        )

    def write(self, store: Objects) -> "StoredVersion":
        """Make the version durable. Raises StoreFull and StoreUnavailable: call again."""
        part, coming = self._part, self._part.coming
        assert coming is not None, "compute() first"
        state = SliceTensors(master=part.master, momentum=part.momentum, base=coming.base)
        digest, name = write_slice(store, self.origin, state, part.recipe.wire_down)
        return StoredVersion(
            slice=part.fragment,
            number=coming.number,
            digest=digest,
            object=name,
            found=self.found,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """A version on the disk that no entry names yet; `digest` is its base's."""

    slice: int
    number: int
    digest: str
    object: str
    found: MergeFindings = NOTHING_FOUND


class TensorValues:
    """All slices of one shard; see the module, also for what may run in a thread."""

    def __init__(
        self, layout: Layout, shard: int, slices: Mapping[int, SliceValues], norm_limit: float
    ) -> None:
        self.layout = layout
        self.shard = shard
        self.slices = slices
        self._offers: dict[OfferName, Arrived] = {}
        self._kept: dict[tuple[int, int], Arrived] = {}  # session, slice
        self._merging, self._examining = Workers(), Workers()
        self._norms = NormHistory(norm_limit)  # of the thread of merges

    @classmethod
    def allocate(
        cls, layout: Layout, shard: int, sync: Sync, only: int | None = None
    ) -> "TensorValues":
        """Memory for every slice of the shard, or one: 8 bytes per element; bases come later.

        Raises MemoryError when this process can never have so much.
        """
        mine = [x for x in layout.shard_slices(shard) if only is None or x.fragment == only]
        needed, most = STATE_BYTES * sum(x.element_count for x in mine), memory_byte_count_max()
        if needed > most:
            raise MemoryError(f"the values take {needed} bytes, and this process can have {most}")
        return cls(
            layout,
            shard,
            {
                owned.fragment: SliceValues(
                    fragment=owned.fragment,
                    recipe=recipe(layout, owned, sync),
                    master=np.zeros(owned.element_count, F32),
                    momentum=np.zeros(owned.element_count, F32),
                )
                for owned in mine
            },
            sync.norm_limit,
        )

    @property
    def staged_bytes(self) -> int:
        """Memory that offers, seeds and held versions take."""
        arrived = [*self._offers.values(), *self._kept.values()]
        return sum(each.byte_count for each in arrived)

    def examine(self, head: pb.Transfer, payload: Buffer, steps: int = 0) -> Arrived:
        """Verify a whole transfer, in a thread. Raises TransferError.

        `steps` are the versions from this shard's to a held one; 0: it may be any (rule 47).
        """
        arrived = examine(self.layout, self.shard, head, payload, self._examining)
        if steps and self._norms.limit:
            part = self.slices[head.held.version.slice]
            step_max = 2 * self._norms.limit * steps * part.recipe.learning_rate
            tensors = part.master, part.momentum
            far = too_far(arrived.values, *tensors, step_max=step_max, workers=self._examining)
            if far:
                raise TransferError(f"slice {part.fragment}: {far}")
        return arrived

    def stage(self, name: Stage, offer: Arrived) -> None:
        self._offers[name.slot, name.incarnation, name.slice, name.capture] = offer

    def drop(self, name: Drop) -> None:
        self._offers.pop((name.slot, name.incarnation, name.slice, name.capture), None)

    def keep(self, session: int, slice_: int, arrived: Arrived) -> None:
        self._kept[session, slice_] = arrived

    def forget(self, session: int) -> None:
        """Drop what `keep` kept of a session."""
        for key in [key for key in self._kept if key[0] == session]:
            del self._kept[key]

    def staged(self, effect: MergeOffers) -> dict[str, Arrived]:
        """Return the offers that are to be merged, by slot."""
        return {
            p.slot: self._offers[p.slot, p.incarnation, effect.slice, p.capture]
            for p in effect.participants
        }

    def begin_merge(self, effect: MergeOffers, run: str, epoch: int) -> VersionInMaking:
        """Return the head's successor; takes the staged offers that it merges."""
        part = self.slices[effect.slice]
        assert part.head is not None, f"slice {effect.slice} has no version"
        assert part.coming is None, f"slice {effect.slice} has a commit under way"
        by_slot = self.staged(effect)
        for p in effect.participants:
            del self._offers[p.slot, p.incarnation, effect.slice, p.capture]
        weights = {p.slot: p.weight for p in effect.participants}
        state = SliceTensors(master=part.master, momentum=part.momentum, base=part.head.base)

        making = VersionInMaking(part, self._origin(part, part.head.number + 1, run, epoch))

        def make() -> Published:
            norms = {slot: norm_of(each) for slot, each in by_slot.items()}
            left_out = self._norms.outliers(effect.slice, norms)
            slots = [slot for slot in by_slot if slot not in left_out]
            offers, shares = [by_slot[slot] for slot in slots], [weights[slot] for slot in slots]
            made, absurd = advance_finite(
                state,
                offers,
                shares,
                part.recipe,
                self._merging,
                momentum=effect.momentum,
                last=effect.last,
            )
            left_out |= {slots[n]: NOT_FINITE for n in absurd}
            alike = dict(zip(slots, cosines(offers, shares), strict=True)) if offers else {}
            making.found = MergeFindings(left_out=left_out, norms=norms, cosines=alike)
            return made

        making.make = make
        return making

    def begin_seed(self, effect: StoreSeed, run: str, epoch: int) -> list[VersionInMaking]:
        """Version 0 of every slice, by fragment, from the seeds of one session."""
        makings = []
        for fragment, part in sorted(self.slices.items()):
            seed = self._kept.pop((effect.session, fragment))
            make = self._adopting(part, seed, base_encoding(part.recipe.wire_down))
            makings.append(VersionInMaking(part, self._origin(part, 0, run, epoch), make))
        return makings

    def begin_restored(self, run: str, epoch: int) -> list[VersionInMaking]:
        """Version 0 of every slice, from the masters and momenta that a checkpoint has filled."""
        return [
            VersionInMaking(part, self._origin(part, 0, run, epoch), partial(_rounded, part))
            for _, part in sorted(self.slices.items())
        ]

    def begin_held(self, effect: StoreHeld, run: str, epoch: int) -> VersionInMaking:
        """Return a learner's version under the next number, with zero momentum (rule 22).

        Its base has the bits that the learner sent: those of a last version are f32.
        """
        part = self.slices[effect.slice]
        held = self._kept.pop((effect.session, effect.slice))
        make = self._adopting(part, held, held.values.encoding)
        return VersionInMaking(part, self._origin(part, effect.number, run, epoch), make)

    def begin_previous(
        self, head: HeadVersion, effect: StorePrevious, store: Store, run: str, epoch: int
    ) -> VersionInMaking:
        """Begin with the store's `head` under a later number; `compute` may raise StoreError."""
        part = self.slices[effect.slice]
        origin = self._origin(part, effect.number, run, epoch)
        return VersionInMaking(part, origin, lambda: Published(base=_read(part, head, store)))

    def committed(self, slice_: int) -> None:
        """Note that the entry that names the slice's coming version is durable."""
        part = self.slices[slice_]
        assert part.coming is not None, f"slice {slice_} has no commit under way"
        part.head, part.coming = part.coming, None

    def publish_payload(self, slice_: int, number: int, base: int | None) -> Payload:
        """Return a version for a receiver that holds number `base` bit for bit, or no known one.

        `number` is the head's or the coming version's: chunks may leave before the entry is
        durable, the trailer may not. Raises KeyError for any other number.
        """
        part = self.slices[slice_]
        version = next(
            (v for v in (part.coming, part.head) if v is not None and v.number == number), None
        )
        if version is None:
            raise KeyError(number)
        if version.difference is not None and base == number - 1:
            encoding = encoding_of(part.recipe.wire_down)
            return Payload(encoding=encoding, difference=True, data=version.difference)
        encoding = arrays.encoding_of(version.base)
        return Payload(encoding=encoding, difference=False, data=version.base.data)

    def bases(self) -> dict[int, Base]:
        """Return the head of every slice, as published."""
        heads = {fragment: part.head for fragment, part in self.slices.items()}
        return {fragment: head.base for fragment, head in heads.items() if head is not None}

    def exported(self) -> dict[int, Array]:
        """Return what the export is made of: the bases [n]."""
        return {fragment: as_learners_hold(base) for fragment, base in self.bases().items()}

    def restore(self, fragment: int, head: HeadVersion, store: Store) -> None:
        """Read the head of a slice back, to the bit. Takes long; may run in a thread.

        Raises StoreMissing and StoreCorrupt (committed data is lost), StoreUnavailable (try again).
        """
        part = self.slices[fragment]
        part.head = Version(number=head.number, base=_read(part, head, store))

    def _adopting(
        self, part: SliceValues, arrived: Arrived, encoding: pb.Encoding
    ) -> Callable[[], Published]:
        """Return a version from whole values: they become the master, and the momentum is zero.

        `encoding` is that of its base.
        """

        def make() -> Published:
            values, exact = arrived.values, part.recipe.form.exact
            part.master[:exact] = values.exact
            arrays.decode(values.coded, values.encoding, part.master[exact:])
            part.momentum[:] = 0
            base = arrays.empty_packed(encoding, part.recipe.form)
            round_master(part.master, base)
            return Published(base=base)

        return make

    def _origin(self, part: SliceValues, number: int, run: str, epoch: int) -> VersionOrigin:
        return VersionOrigin(
            run=run, shard=self.shard, slice=part.fragment, number=number, epoch=epoch
        )


def _read(part: SliceValues, head: HeadVersion, store: Store) -> Base:
    return read_slice(
        store,
        head,
        master=part.master,
        momentum=part.momentum,
        form=part.recipe.form,
        wire_down=part.recipe.wire_down,
    )


def _rounded(part: SliceValues) -> Published:
    """Return a base that is the master, rounded."""
    base = arrays.empty_packed(base_encoding(part.recipe.wire_down), part.recipe.form)
    round_master(part.master, base)
    return Published(base=base)
