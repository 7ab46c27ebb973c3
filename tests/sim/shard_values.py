"""Symbols in place of a shard's tensors: `numbers.values.TensorValues` for the simulation.

A payload on the wire is real bytes of the right length; in it stands the number of a symbol, which
the world keeps (`World.symbols`). So frames, checksums and sizes are production's.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.arrays import F32, Array
from atoll_protos.transfer.codecs import BY_WIRE
from atoll_syncer.model.effects import (
    Drop,
    MergeOffers,
    Stage,
    StoreHeld,
    StorePrevious,
    StoreSeed,
)
from atoll_syncer.model.history import HeadVersion
from atoll_syncer.numbers.commit import TransferError
from atoll_syncer.numbers.values import Payload, StoredVersion
from atoll_syncer.storage.files import Store
from atoll_syncer.storage.objects import decode_header, encode_parts
from sim.symbols import (
    Change,
    Difference,
    Norms,
    Symbol,
    Value,
    Works,
    master_of,
    merge,
    momentum_of,
    norms_of,
)

if TYPE_CHECKING:
    from sim.shard_process import ShardProcess

OfferName = tuple[str, int, int, int]  # slot, incarnation, slice, capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A value under its number; `before` is the value that it was made from."""

    number: int
    value: Value
    before: Value | None = None
    merges: int = 0  # that its momentum has taken in


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A slice that is filled from a checkpoint."""

    master: Array  # f32[n]
    momentum: Array  # f32[n]


class ShardValues:
    """See numbers.values.TensorValues."""

    def __init__(self, process: "ShardProcess", layout: Layout, sync: Sync) -> None:
        self.process, self.world, self.layout, self.sync = process, process.world, layout, sync
        self.versions: dict[int, Version] = {}
        self.coming: dict[int, Version] = {}
        self.staged: dict[OfferName, Difference] = {}
        self.kept: dict[tuple[int, int], Value] = {}  # session, slice
        self.slices = {
            each.fragment: Filled(
                master=np.zeros(each.element_count, F32), momentum=np.zeros(each.element_count, F32)
            )
            for each in (layout.shard_slices(process.number) if process.world.parent else ())
        }

    @property
    def base_encoding(self) -> pb.Encoding:
        """Of all versions but the last one."""
        return BY_WIRE[self.sync.wire_down].base

    @property
    def heads(self) -> Mapping[int, Value]:
        return {fragment: version.value for fragment, version in self.versions.items()}

    @property
    def staged_bytes(self) -> int:
        return len(self.staged) + len(self.kept)

    def examine(self, head: pb.Transfer, payload: bytearray, steps: int = 0) -> Symbol:
        """See Values: a held value has the digest of its version."""
        symbol = self.world.symbol(payload)
        if head.HasField("held"):
            claimed = head.held.version.version.digest
            if not isinstance(symbol, Value) or symbol.digest != claimed:
                raise TransferError("another value than the version")
        if isinstance(symbol, Difference):
            return replace(symbol, norms=self.norms(head))
        return symbol

    def norms(self, head: pb.Transfer) -> Norms:
        """Of an offer that has come whole."""
        return norms_of(self.layout.slice(self.process.number, head.offer.slice))

    def stage(self, name: Stage, offer: Symbol) -> None:
        assert isinstance(offer, Difference), f"{name} is {offer}"
        self.process.sim.note(self.process.name, f"offer {offer.theta.work}")
        self.staged[name.slot, name.incarnation, name.slice, name.capture] = offer

    def drop(self, name: Drop) -> None:
        self.staged.pop((name.slot, name.incarnation, name.slice, name.capture), None)

    def keep(self, session: int, slice_: int, arrived: Symbol) -> None:
        assert isinstance(arrived, Value), f"a whole value was to come, not {arrived}"
        self.kept[session, slice_] = arrived

    def forget(self, session: int) -> None:
        self.kept = {key: value for key, value in self.kept.items() if key[0] != session}

    def begin_merge(self, effect: MergeOffers, run: str, epoch: int) -> "Making":
        fragment, head = effect.slice, self.versions[effect.slice]
        assert fragment not in self.coming, f"slice {fragment} has a commit under way"
        names = [(p.slot, p.incarnation, fragment, p.capture) for p in effect.participants]
        offers = tuple(self.staged.pop(name, None) for name in names)
        self.world.watchers.tell("merging", self.process, effect, offers)
        worked = [(o.theta.work, o.norms) for o in offers if o is not None and o.theta.work]
        works = tuple(work for work, _ in worked)
        norms = tuple(norms for _, norms in worked)
        merged = [(*name[:2], name[3]) for name in names]
        self.process.sim.note(self.process.name, f"merges slice {fragment}: {merged}")
        version = self.merged(fragment, head, works, norms, exact=effect.last)
        return Making(self, fragment, version, epoch)

    def merged(
        self,
        fragment: int,
        head: Version,
        works: Works,
        norms: tuple[Norms, ...],
        *,
        exact: bool,
    ) -> Version:
        """The version after `head`; `exact` if it is the last one of its slice."""
        owned, base = self.layout.slice(self.process.number, fragment), self.base_encoding
        wide = self.layout.final_encoding(owned, base) != base
        value = merge(head.value, works, norms, exact=exact and wide)
        merges = head.merges + bool(works)
        return Version(number=head.number + 1, value=value, before=head.value, merges=merges)

    def begin_seed(self, effect: StoreSeed, run: str, epoch: int) -> Sequence["Making"]:
        seeds = {
            fragment: self.kept.pop((effect.session, fragment))
            for fragment in range(self.layout.fragments)
        }
        return [
            Making(self, fragment, Version(number=0, value=value), epoch)
            for fragment, value in seeds.items()
        ]

    def begin_restored(self, run: str, epoch: int) -> Sequence["Making"]:
        """Values of which nothing is known but their elements."""
        makings = []
        for fragment, filled in sorted(self.slices.items()):
            digest = hashlib.sha256(filled.master.tobytes()).hexdigest()[:16]
            version = Version(number=0, value=Value(digest))
            makings.append(Making(self, fragment, version, epoch, filled))
        return makings

    def begin_held(self, effect: StoreHeld, run: str, epoch: int) -> "Making":
        value = self.kept.pop((effect.session, effect.slice))
        return Making(self, effect.slice, Version(number=effect.number, value=value), epoch)

    def begin_previous(
        self, head: HeadVersion, effect: StorePrevious, store: Store, run: str, epoch: int
    ) -> "Making":
        value = self._read(head, store)
        version = Version(number=effect.number, value=value, merges=head.merges)
        return Making(self, effect.slice, version, epoch)

    def _read(self, head: HeadVersion, store: Store) -> Value:
        return self.world.values[decode_header(store.read(head.object)).metadata["digest"]]

    def committed(self, slice_: int) -> None:
        self.versions[slice_] = self.coming.pop(slice_)

    def publish_payload(self, slice_: int, number: int, base: int | None) -> Payload:
        found = (self.coming.get(slice_), self.versions.get(slice_))
        version = next(v for v in found if v is not None and v.number == number)
        codec = BY_WIRE[self.sync.wire_down]
        symbol: Symbol = version.value
        encoding, difference = pb.F32 if version.value.exact else codec.base, False
        if (
            not version.value.exact
            and codec.scaled
            and version.before is not None
            and base == number - 1
        ):
            symbol, encoding = Change(version.before, version.value), codec.encoding
            difference = True
        form = self.layout.slice(self.process.number, slice_).form
        data = self.world.payload(symbol, form.byte_count(encoding))
        return Payload(encoding=encoding, difference=difference, data=data)

    def exported(self) -> Mapping[int, Value]:
        return self.heads

    def restore(self, fragment: int, head: HeadVersion, store: Store) -> None:
        self.world.watchers.tell("slice_read", self.process, fragment)
        value = self._read(head, store)
        self.versions[fragment] = Version(number=head.number, value=value, merges=head.merges)


class Making:
    """See numbers.values.Making: an object of its own for each version."""

    def __init__(
        self,
        values: ShardValues,
        fragment: int,
        version: Version,
        epoch: int,
        filled: Filled | None = None,
    ) -> None:
        self.values, self.fragment, self.version, self.epoch = values, fragment, version, epoch
        self.filled = filled

    def compute(self) -> None:
        self.values.coming[self.fragment] = self.version
        self.values.world.values[self.version.value.digest] = self.version.value

    def write(self, store: Store) -> StoredVersion:
        version, digest = self.version, self.version.value.digest
        origin = {
            "shard": self.values.process.number,
            "slice": self.fragment,
            "number": version.number,
            "epoch": self.epoch,
            "digest": digest,
        }
        metadata = {key: str(each) for key, each in origin.items()}
        name = store.put(encode_parts(self._arrays(), metadata), self.epoch)
        return StoredVersion(slice=self.fragment, number=version.number, digest=digest, object=name)

    def _arrays(self) -> dict[str, Array]:
        """Elements that stand for the value, where a checkpoint may carry them to another world."""
        if self.filled is not None:
            return {"master": self.filled.master, "momentum": self.filled.momentum}
        if self.values.world.run_file.checkpoint is None:
            return {}
        digest = self.version.value.digest
        count = self.values.layout.slice(self.values.process.number, self.fragment).element_count
        momentum = momentum_of(digest, self.version.merges, count)
        return {"master": master_of(digest, count), "momentum": momentum}
