"""One version of a slice as an object of the store, and the removal of old ones (rule 19).

An object holds master and momentum in f32, and of the base only what is not simply the master,
rounded: with an integer wire the coded values are sums of differences (rule 17); the exact ones
(codecs.Form), and those of a last version, are the master's. So a restart continues
with exactly the same bits. An object takes 8 bytes per element, 10 with an integer wire.

Objects are written before the entry that names them. A process that dies in between leaves an
object that no entry names; the Collector of a later term removes it.
"""

import dataclasses
import hashlib
import threading
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.arrays import Array, Base, empty_packed, encoding_of
from atoll_protos.transfer.codecs import BY_WIRE, Form, Wire, base_encoding
from atoll_syncer.model.history import HeadVersion
from atoll_syncer.model.log import SliceTensors, round_master
from atoll_syncer.storage.files import OBJECTS, Objects, Store, StoreCorrupt, epoch_of, read_object
from atoll_syncer.storage.objects import (
    ObjectError,
    decode,
    decode_header,
    encode_header,
    encode_parts,
)

LOST = "let it be taken back from a learner, or restore a checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOrigin:
    """A part of the object's bytes: no two versions share one, and no name is given again."""

    run: str
    shard: int
    slice: int
    number: int
    epoch: int


def write_slice(
    store: Objects, origin: VersionOrigin, state: SliceTensors, wire_down: Wire
) -> tuple[str, str]:
    """Write it; return the base's digest and the object. StoreFull or StoreUnavailable."""
    content = {"master": state.master, "momentum": state.momentum}
    if BY_WIRE[wire_down].scaled and encoding_of(state.base) != pb.F32:
        content["base"] = state.base.coded
    metadata = {key: str(value) for key, value in dataclasses.asdict(origin).items()}
    digest = hashlib.sha256()
    hashing = threading.Thread(target=digest.update, args=(state.base.data,))
    hashing.start()
    try:
        stored = store.put(encode_parts(content, metadata), origin.epoch)
    finally:
        hashing.join()
    return digest.hexdigest(), stored


def read_slice(
    store: Store,
    head: HeadVersion,
    *,
    master: Array,
    momentum: Array,
    form: Form,
    wire_down: Wire,
) -> Base:
    """Fill `master` and `momentum`, f32[n]; returns the base, which is f32 of a last version.

    Raises StoreMissing and StoreCorrupt (committed data is lost), StoreUnavailable (try again).
    """
    data = read_object(store, head.object, LOST)
    try:
        content, _ = decode(data)
        read = {"master": (content["master"], master), "momentum": (content["momentum"], momentum)}
    except (ObjectError, KeyError) as error:
        raise StoreCorrupt(head.object, f"not a slice: {error!r}", LOST) from error
    for found, wanted in read.values():
        if found.shape != wanted.shape:
            raise StoreCorrupt(head.object, f"has another layout: {found.shape}", LOST)
    for found, wanted in read.values():
        wanted[:] = found
    coded = content.get("base")
    for encoding in (base_encoding(wire_down), pb.F32):
        base = empty_packed(encoding, form)
        round_master(master, base)
        if coded is not None and coded.shape == base.coded.shape:
            base.coded[:] = coded
        if base.digest == head.digest:
            return base
    raise StoreCorrupt(head.object, "its base has another digest", LOST)


class Collector:
    """Removes objects, but for those that a start needs (`History.live_objects`).

    An object without an entry goes when its epoch is below that of this term: such an entry can no
    longer be created. So even a deposed process that slept removes no object of its successor.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: set[str] = set()
        self._pinned: Set[str] = frozenset()
        self._unneeded: deque[str] = deque()

    def sweep(self, live: set[str], epoch: int) -> int:
        """Remove what older terms left; once in a process: its own merges have no entry yet."""
        removed = 0
        for name in self._store.names(OBJECTS):
            written = epoch_of(name)
            if name not in live and written is not None and written < epoch:
                self._store.delete(name)
                removed += 1
        return removed

    def note(self, live: set[str], named: Set[str] = frozenset()) -> None:
        """After each entry: what it made unneeded may go. Safe while `remove` runs in a thread."""
        self._unneeded.extend(sorted((self._live | named) - live - self._pinned))
        self._live = set(live)

    def pin(self, names: Set[str]) -> None:
        """Keep these until the next call, also when nobody needs them any more (rule 42)."""
        self._unneeded.extend(sorted(self._pinned - names - self._live))
        self._pinned = names

    def remove(self) -> None:
        """Remove what became unneeded. May be called again after an error."""
        while self._unneeded:
            self._store.delete(self._unneeded[0])
            self._unneeded.popleft()


STATES_LOST = "learners of these slots find their place in the data by the cursor alone"


def write_data_states(store: Store, origin: VersionOrigin, data_states: Mapping[str, bytes]) -> str:
    """`origin` is the version of the commit. Raises StoreFull and StoreUnavailable."""
    header = encode_header(
        {slot: ("U8", (len(each),)) for slot, each in data_states.items()},
        {key: str(value) for key, value in dataclasses.asdict(origin).items()},
    )
    return store.put([header, *data_states.values()], origin.epoch)


def read_data_states(store: Store, name: str) -> dict[str, bytes]:
    """Raise StoreMissing and StoreCorrupt (they are lost), StoreUnavailable (try again)."""
    data = read_object(store, name, STATES_LOST)
    try:
        entries = decode_header(data).entries
    except ObjectError as error:
        raise StoreCorrupt(name, f"not data states: {error}", STATES_LOST) from error
    return {slot: bytes(data[entry.start : entry.stop]) for slot, entry in entries.items()}
