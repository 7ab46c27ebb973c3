"""What a script keeps with its cursor, at a shard: in the store, the log, a Welcome (rule 28)."""

import dataclasses

import pytest

from atoll_protos.names import DATA_STATE_BYTES_MAX
from atoll_syncer.model import log
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed
from atoll_syncer.storage import versions
from atoll_syncer.storage.files import FileStore, StoreCorrupt, StoreMissing
from atoll_syncer.storage.versions import Collector, VersionOrigin
from unit.syncer.log_side import a_commit, a_participant, a_seed

ORIGIN = VersionOrigin(run="r", shard=0, slice=1, number=2, epoch=3)


# ------------------------------------------------------------ the object


def test_the_bytes_of_every_slot_come_back_as_they_were(store: FileStore) -> None:
    states = {"a-0": b"", "a-1": bytes(range(256)), "b-0": bytes(DATA_STATE_BYTES_MAX)}
    name = versions.write_data_states(store, ORIGIN, states)
    assert versions.read_data_states(store, name) == states
    assert versions.write_data_states(store, ORIGIN, states) == name


def test_damage_and_loss_are_told_apart_from_data_states(store: FileStore) -> None:
    later = dataclasses.replace(ORIGIN, number=3)
    name, other = (
        versions.write_data_states(store, each, {"a-0": b"some"}) for each in (ORIGIN, later)
    )
    assert name != other  # two commits share no object
    path = store.root / name
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreCorrupt, match="its bytes have changed"):
        versions.read_data_states(store, name)
    path.unlink()
    with pytest.raises(StoreMissing):
        versions.read_data_states(store, name)
    with pytest.raises(StoreCorrupt, match="not data states"):
        versions.read_data_states(store, store.put([b"something else"], 1))


def test_what_a_killed_process_left_goes_however_many_slots_it_names(store: FileStore) -> None:
    states = {f"some-region-{n}": b"x" for n in range(5000)}
    name = versions.write_data_states(store, ORIGIN, states)
    assert Collector(store).sweep(live={name}, epoch=9) == 0
    assert Collector(store).sweep(live=set(), epoch=ORIGIN.epoch) == 0
    assert Collector(store).sweep(live=set(), epoch=ORIGIN.epoch + 1) == 1


# ------------------------------------------------------------ the history


def commit(number: int, cursor: int, name: str = "", slice_: int = 0) -> Committed:
    states = {"a-0": name} if name else {}
    return a_commit(
        number, slice_, participants=(a_participant(cursor=cursor),), data_states=states
    )


def history(*entries: Committed) -> History:
    made = History()
    every: list[log.Entry] = [a_seed(("d", "d"), ("0.0", "1.0")), *entries]
    for entry in every:
        made.apply(log.from_document(log.to_document(entry)))
    return made


LINEAGE = log.Merged(slot="a-0", incarnation=1, base=0, capture=1, cursor=9)
TAKEN_BACK = a_commit(2, recovered=True, lineage=(LINEAGE,))


@pytest.mark.parametrize(
    ("entries", "cursor", "kept"),
    [
        ([commit(1, 5, "five"), commit(1, 4, "four", 1)], 5, {"a-0": "five"}),  # the largest
        ([commit(1, 5, "five"), commit(2, 6)], 6, {}),  # one without ends the one before
        ([commit(1, 5, "five"), TAKEN_BACK], 9, {}),  # rule 22: a lineage names the cursor alone
        ([commit(1, 5, "first"), commit(1, 5, "second", 1)], 5, {"a-0": "first"}),
    ],
)
def test_a_data_state_stays_with_the_largest_cursor_of_any_slice(
    entries: list[Committed], cursor: int, kept: dict[str, str]
) -> None:
    made = history(*entries)
    assert (made.cursors, made.data_states) == ({"a-0": cursor}, kept)
    assert {*kept.values()} == made.live_objects() & {"five", "four", "first", "second"}
