"""What a script keeps with its cursor, at a shard: in the store, the log, a Welcome (rule 28)."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import DATA_STATE_BYTES_MAX
from atoll_syncer.model import log
from atoll_syncer.model.effects import Accept, Merge
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Participant
from atoll_syncer.storage import data_states
from atoll_syncer.storage.store import FileStore, StoreCorrupt, StoreMissing
from atoll_syncer.storage.versions import Collector, Origin
from unit.syncer.shard_side import Side, begun, digest, head_of, side, step_all

ORIGIN = Origin(run="r", shard=0, slice=1, number=2, epoch=3)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path)
    store.open()
    return store


# ------------------------------------------------------------ the object


def test_the_bytes_of_every_slot_come_back_as_they_were(store: FileStore) -> None:
    states = {"a-0": b"", "a-1": bytes(range(256)), "b-0": bytes(DATA_STATE_BYTES_MAX)}
    name = data_states.write(store, ORIGIN, states)
    assert data_states.read(store, name) == states
    assert data_states.write(store, ORIGIN, states) == name


def test_two_commits_share_no_object_even_with_the_same_bytes(store: FileStore) -> None:
    later = dataclasses.replace(ORIGIN, number=3)
    first, second = (data_states.write(store, each, {"a-0": b"x"}) for each in (ORIGIN, later))
    assert first != second


def test_damage_and_loss_are_told_apart_from_data_states(store: FileStore) -> None:
    name = data_states.write(store, ORIGIN, {"a-0": b"some bytes"})
    path = store.root / name
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreCorrupt, match="its bytes have changed"):
        data_states.read(store, name)
    path.unlink()
    with pytest.raises(StoreMissing):
        data_states.read(store, name)


def test_an_object_that_is_no_data_states_is_not_believed(store: FileStore) -> None:
    name = store.put([b"something else"])
    with pytest.raises(StoreCorrupt, match="not data states"):
        data_states.read(store, name)


def test_what_a_killed_process_left_goes_however_many_slots_it_names(store: FileStore) -> None:
    states = {f"some-region-{n}": b"x" for n in range(5000)}
    name = data_states.write(store, ORIGIN, states)
    assert Collector(store).sweep(live={name}, epoch=9) == 0
    assert Collector(store).sweep(live=set(), epoch=ORIGIN.epoch) == 0
    assert Collector(store).sweep(live=set(), epoch=ORIGIN.epoch + 1) == 1


# ------------------------------------------------------------ the history


def commit(
    number: int, cursor: int, name: str = "", *, slice_: int = 0, slot: str = "a-0"
) -> Committed:
    part = Participant(
        slot=slot,
        incarnation=1,
        capture=1,
        base=number - 1,
        steps=1,
        tokens=1,
        cursor=cursor,
        weight=1.0,
    )
    return Committed(
        slice=slice_,
        number=number,
        epoch=1,
        digest="d",
        object=f"{slice_}.{number}",
        base=number - 1,
        tick=number,
        due=number,
        reason="",
        last=False,
        recovered=False,
        participants=(part,),
        data_states={slot: name} if name else {},
    )


def history(*entries: Committed) -> History:
    made = History()
    seeded = log.Seeded(
        tensors=({"name": "w"},),
        layout_digest="l",
        epoch=1,
        digests=("d", "d"),
        objects=("0.0", "1.0"),
    )
    every: list[log.Entry] = [seeded, *entries]
    for entry in every:
        made.apply(log.from_document(log.to_document(entry)))
    return made


def test_a_data_state_stays_with_the_largest_cursor_of_any_slice() -> None:
    made = history(commit(1, 5, "five"), commit(1, 4, "four", slice_=1))
    assert made.data_states == {"a-0": "five"}
    assert "five" in made.live_objects()
    assert "four" not in made.live_objects()


def test_a_cursor_without_a_data_state_ends_the_one_before() -> None:
    made = history(commit(1, 5, "five"), commit(2, 6))
    assert (made.cursors, made.data_states) == ({"a-0": 6}, {})


def test_a_cursor_from_another_shards_loss_has_no_data_state_here() -> None:
    """Rule 22: a lineage names the cursor alone."""
    lineage = log.Merged(slot="a-0", incarnation=1, base=0, capture=1, cursor=9)
    back = dataclasses.replace(
        commit(2, 0), recovered=True, participants=(), lineage=(lineage,), data_states={}
    )
    made = history(commit(1, 5, "five"), back)
    assert (made.cursors, made.data_states) == ({"a-0": 9}, {})


def test_of_two_objects_for_one_cursor_the_first_stays() -> None:
    made = history(commit(1, 5, "first"), commit(1, 5, "second", slice_=1))
    assert made.data_states == {"a-0": "first"}


# ------------------------------------------------------------ the rules of a shard


def open_round(*slots: str, **sync: Any) -> tuple[Side, list[int]]:
    """Slice 1 (offset 4) is due and called, at one tick a second."""
    one, sessions = begun(*slots, **sync)
    step_all(one, sessions, range(1, 6))
    return one, sessions


def successor(one: Side, **fields: Any) -> pb.Welcome:
    """What the next instance of a-0 is told."""
    one.sent("welcome")
    one.join("a-0", **{"instance": "new", "starting": True, **fields})
    ((_, welcome),) = one.sent("welcome")
    assert isinstance(welcome, pb.Welcome)
    return welcome


def test_a_successor_gets_the_data_state_of_the_cursor_with_which_it_goes_on() -> None:
    one, (session,) = open_round("a-0")
    one.offer(session, 1, 5, cursor=33, data_state=b"at 33")
    entry = head_of(one.entries, 1)
    assert entry.data_states == {"a-0": f"states {digest(1, 1)}"}
    one.leave(session)
    welcome = successor(one)
    assert (welcome.cursor, welcome.data_state) == (33, b"at 33")


def test_one_that_trains_and_an_observer_get_none() -> None:
    one, (session,) = open_round("a-0")
    one.offer(session, 1, 5, cursor=33, data_state=b"at 33")
    one.leave(session)
    assert not successor(one, starting=False).HasField("data_state")
    one.join("", instance="observer", observer=True, starting=True)
    ((_, welcome),) = one.sent("welcome")
    assert not welcome.HasField("data_state")


def test_no_data_state_is_not_an_empty_one() -> None:
    one, (session,) = open_round("a-0")
    one.offer(session, 1, 5, cursor=33, data_state=b"")
    one.leave(session)
    assert successor(one).HasField("data_state")


def test_a_merge_without_data_states_writes_none_and_names_none() -> None:
    one, (session,) = open_round("a-0")
    one.offer(session, 1, 5, cursor=33)
    (merge,) = one.take(Merge)
    assert merge.data_states == {}
    assert head_of(one.entries, 1).data_states == {}
    one.leave(session)
    assert not successor(one).HasField("data_state")


def test_a_successor_in_the_middle_of_a_merge_gets_the_data_state_of_that_merge() -> None:
    """Its entry is not durable yet, and the cursor with which the slot goes on is that of it."""
    one, (session,) = open_round("a-0")
    one.offer(session, 1, 5, cursor=33, data_state=b"at 33")
    step_all(one, [session], range(6, 10))
    one.skip_merges = True
    one.offer(session, 0, 9, cursor=37, data_state=b"at 37")
    one.leave(session)
    welcome = successor(one)
    assert (welcome.cursor, welcome.data_state) == (37, b"at 37")


def test_an_offer_that_leaves_its_round_takes_its_data_state_along() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5, cursor=33, data_state=b"at 33")
    assert one.state.rounds.open[1].data_states == {"a-0": b"at 33"}
    one.leave(sessions[0])
    welcome = successor(one)
    assert (welcome.cursor, welcome.HasField("data_state")) == (0, False)
    assert one.state.rounds.open[1].data_states == {}


def test_what_is_merged_without_an_offer_does_not_keep_its_data_state() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.skip_merges = True
    for session, slot in zip(sessions, ("a-0", "a-1"), strict=True):
        one.offer(session, 1, 5, cursor=33, data_state=slot.encode())
    (merge,) = one.take(Merge)
    assert merge.data_states == {"a-0": b"a-0", "a-1": b"a-1"}
    left_out = frozenset({"a-0"})
    one.feed(one.shard.merged(1, digest(1, 1), "object", one.now, left_out, "states"))
    assert head_of(one.entries, 1).data_states == {"a-1": "states"}
    assert one.state.data_states.kept == {"a-1": b"a-1"}


def test_a_session_carries_a_data_state_once_for_several_slices() -> None:
    one, (session,) = begun("a-0")
    step_all(one, [session], range(1, 10))
    one.offer(session, 1, 9, cursor=33, data_state=b"at 33")
    one.offer(session, 0, 9, cursor=33, same_data_state=True)
    one.leave(session)
    assert successor(one).data_state == b"at 33"
    first, second = head_of(one.entries, 1), head_of(one.entries, 0)
    assert first.data_states
    assert second.data_states == {}  # the cursor's is kept already


def test_a_data_state_that_never_came_ends_the_session_and_nothing_else() -> None:
    one, sessions = open_round("a-0", "a-1", quorum=2)
    one.offer(sessions[0], 1, 5, cursor=33, same_data_state=True)
    (end,) = one.ends()
    assert "no offer of this session has brought a data state" in end.reason
    assert sessions[1] in one.shard.sessions


@pytest.mark.parametrize(("more", "accepted"), [(0, True), (1, False)])
def test_a_data_state_has_a_largest_size_rule_25(more: int, accepted: bool) -> None:
    one, (session,) = open_round("a-0", quorum=1)
    data_state = bytes(DATA_STATE_BYTES_MAX + more)
    one.skip_merges = True
    one.offer(session, 1, 5, cursor=33, data_state=data_state)
    assert bool(one.take(Accept)) is accepted
    assert [end.reason for end in one.ends()] == [
        f"slice 1: a data state of {len(data_state)} bytes" for _ in range(more)
    ]


def test_a_restart_of_the_shard_gives_what_its_store_holds() -> None:
    one, (session,) = open_round("a-0")
    one.offer(session, 1, 5, cursor=33, data_state=b"at 33")
    again = side(entries=tuple(one.entries))
    again.feed(again.shard.data_states_read({"a-0": b"at 33"}))
    again.start()
    assert again.state.history.data_states == {"a-0": f"states {digest(1, 1)}"}
    welcome = successor(again)
    assert (welcome.cursor, welcome.data_state) == (33, b"at 33")


def test_a_restart_without_it_gives_the_cursor_alone() -> None:
    one, (session,) = open_round("a-0")
    one.offer(session, 1, 5, cursor=33, data_state=b"at 33")
    again = side(entries=tuple(one.entries)).start()
    welcome = successor(again)
    assert (welcome.cursor, welcome.HasField("data_state")) == (33, False)
