"""What versions were made from, so that a replay can make them again (rule 29).

    PLACE/record/<shard>/snapshots/<slice>.json             the version with which it begins
    PLACE/record/<shard>/log/<slice>-<number>-<epoch>.json  how each version after it was made
    PLACE/record/<shard>/objects/                           the values of the first, and offers

The record of a shard has the form of a store. A version's file comes after its offers, and before
the entry of the log that names the version. So a process that is killed in between leaves the file
of a version that nobody has seen, and a later term makes another one of that number: of two the
higher epoch counts. No file is ever changed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import Buffer
from atoll_syncer.model import documents
from atoll_syncer.model.history import HeadVersion
from atoll_syncer.model.log import Participant, check_order
from atoll_syncer.storage.checksums import DamagedError, with_checksum, without_checksum
from atoll_syncer.storage.objects import ObjectError, decode, encode_parts
from atoll_syncer.storage.store import (
    LOG,
    SNAPSHOTS,
    Store,
    StoreCorrupt,
    read_object,
)

FOLDER: Final = "record"
OFFER: Final = "offer"
NAMED: Final = re.compile(rf"{LOG}(\d+)-(\d+)-(\d+)\.json")
ANOTHER: Final = "record the run again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStart:
    """The version with which a slice's record begins, how the model is cut, and spec.sync."""

    run: str
    shard: int
    shards: int
    slice: int
    fragments: int
    tensors: tuple[Mapping[str, Any], ...]
    layout_digest: str
    sync: Mapping[str, Any]
    head: HeadVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOffer:
    """An offer that was merged: whose it was, how it is encoded, and the object with its bytes."""

    participant: Participant
    encoding: pb.Encoding
    object: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMerge:
    """How a version was made: from the one with the digest `before`, and offers in this order."""

    run: str
    shard: int
    slice: int
    number: int  # of the version
    epoch: int
    time: float  # Unix seconds, for people
    before: str
    rounding: str  # of the process that made it (numbers/merge)
    momentum: float
    last: bool
    offers: tuple[RecordedOffer, ...]
    digest: str  # of the version's base
    object: str  # the name, by content, of what the shard has stored of it

    def __post_init__(self) -> None:
        check_order(each.participant for each in self.offers)


def of_shard(shard: int) -> str:
    return f"{FOLDER}/{shard}"


def start_name(slice_: int) -> str:
    return f"{SNAPSHOTS}{slice_}.json"


def merge_name(slice_: int, number: int, epoch: int) -> str:
    return f"{LOG}{slice_}-{number}-{epoch}.json"


def write(store: Store, name: str, value: RecordStart | RecordedMerge) -> None:
    """Raises StoreFull and StoreUnavailable."""
    store.create(name, with_checksum(documents.to_document(value)))


def write_offer(store: Store, data: Buffer, epoch: int) -> str:
    """The object's name. Raises StoreFull and StoreUnavailable."""
    return store.put(encode_parts({OFFER: np.frombuffer(data, np.uint8)}, {}), epoch)


def read_start(store: Store, shard: int, slice_: int) -> RecordStart:
    """Raises StoreMissing: nothing is recorded of it; StoreCorrupt and StoreUnavailable."""
    name = start_name(slice_)
    found: RecordStart = _read(store, name, RecordStart)
    same = (found.shard, found.slice) == (shard, slice_)
    if not (same and shard < found.shards and slice_ < found.fragments):
        raise StoreCorrupt(name, "it is of another slice", ANOTHER)
    return found


def read_merge(store: Store, slice_: int, number: int, epoch: int) -> RecordedMerge:
    """Raises StoreCorrupt, StoreMissing and StoreUnavailable."""
    name = merge_name(slice_, number, epoch)
    found: RecordedMerge = _read(store, name, RecordedMerge)
    if (found.slice, found.number, found.epoch) != (slice_, number, epoch):
        raise StoreCorrupt(name, "it is of another version", ANOTHER)
    return found


def read_offer(store: Store, offer: RecordedOffer) -> Buffer:
    """Raises StoreCorrupt, StoreMissing and StoreUnavailable."""
    data = read_object(store, offer.object, ANOTHER)
    try:
        content, _ = decode(data)
        return content[OFFER].data
    except (ObjectError, KeyError) as error:
        raise StoreCorrupt(offer.object, f"not an offer: {error!r}", ANOTHER) from error


def slices(store: Store) -> list[int]:
    """Of which there is a record. Raises StoreUnavailable."""
    names = [each.removeprefix(SNAPSHOTS).removesuffix(".json") for each in store.names(SNAPSHOTS)]
    return sorted(int(each) for each in names if each.isdecimal())


def recorded(store: Store) -> dict[int, dict[int, int]]:
    """By slice, by number of the version: the epoch that counts. Raises StoreUnavailable."""
    found: dict[int, dict[int, int]] = {}
    for name in store.names(LOG):
        if match := NAMED.fullmatch(name):
            slice_, number, epoch = map(int, match.groups())
            of_slice = found.setdefault(slice_, {})
            of_slice[number] = max(epoch, of_slice.get(number, 0))
    return found


def _read(store: Store, name: str, kind: type) -> Any:
    try:
        return documents.from_document(kind, without_checksum(store.read(name)))
    except (DamagedError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(name, f"it is damaged: {error}", ANOTHER) from error
