"""The data states of one commit as an object of the store (rule 28), a tensor for each slot."""

import dataclasses
from collections.abc import Mapping

from atoll_syncer.storage.objects import ObjectError, decode_header, encode_header
from atoll_syncer.storage.store import Store, StoreCorrupt, read_object
from atoll_syncer.storage.versions import VersionOrigin

LOST = "learners of these slots find their place in the data by the cursor alone"


def write(store: Store, origin: VersionOrigin, data_states: Mapping[str, bytes]) -> str:
    """`origin` is the version of the commit. Raises StoreFull and StoreUnavailable."""
    header = encode_header(
        {slot: ("U8", (len(each),)) for slot, each in data_states.items()},
        {key: str(value) for key, value in dataclasses.asdict(origin).items()},
    )
    return store.put([header, *data_states.values()], origin.epoch)


def read(store: Store, name: str) -> dict[str, bytes]:
    """Raises StoreMissing and StoreCorrupt (they are lost), StoreUnavailable (try again)."""
    data = read_object(store, name, LOST)
    try:
        entries = decode_header(data).entries
    except ObjectError as error:
        raise StoreCorrupt(name, f"not data states: {error}", LOST) from error
    return {slot: bytes(data[entry.start : entry.stop]) for slot, entry in entries.items()}
