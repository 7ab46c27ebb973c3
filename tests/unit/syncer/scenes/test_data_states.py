"""What a script keeps with its cursor, at a shard: in rounds, the log and a Welcome (rule 28)."""

from atoll_protos.names import DATA_STATE_BYTES_MAX as MAX
from unit.syncer.fixtures import Play
from unit.syncer.shard_side import digest


def test_a_successor_gets_the_data_state_of_the_cursor_with_which_it_goes_on(play: Play) -> None:
    play('round a-0; offer a-0 1 5 cursor=33 data_state=b"at33"')
    entry = play.newest[1]
    assert entry.data_states == {"a-0": f"states {digest(1, 1)}"}
    play('leave a-0; follows; see messages.0.cursor 33; see messages.0.data_state b"at33"')


def test_one_that_trains_and_an_observer_get_none(play: Play) -> None:
    play('round a-0; offer a-0 1 5 cursor=33 data_state=b"at33"; leave a-0')
    play("follows starting=False")
    assert not play.messages[0].HasField("data_state")
    play("join - observer=True starting=True; sent welcome eye")
    assert not play.messages[0].HasField("data_state")


def test_a_merge_without_data_states_writes_none_and_names_none(play: Play) -> None:
    play("round a-0; offer a-0 1 5 cursor=33; merges a-0; see merging.0.data_states {}")
    play("see newest.1.data_states {}; leave a-0; follows")
    assert not play.messages[0].HasField("data_state")


def test_an_offer_that_leaves_its_round_takes_its_data_state_along(play: Play) -> None:
    play('round a-0 a-1 quorum=2; offer a-0 1 5 cursor=33 data_state=b"at33"')
    play('see open.1.data_states {"a-0": b"at33"}; leave a-0; follows')
    assert (play.messages[0].cursor, play.messages[0].HasField("data_state")) == (0, False)
    play("see open.1.data_states {}")


def test_a_data_state_has_a_largest_size_rule_25(play: Play) -> None:
    play("round a-0; slow_merges")
    play.offer("a-0", 1, 5, cursor=33, data_state=bytes(MAX))
    play("effect Accept 1; ends; round a-0")
    play.offer("a-0", 1, 5, cursor=33, data_state=bytes(MAX + 1))
    play("effect Accept 0; ends BAD_TRANSFER")
    assert play.last[0].reason == f"slice 1: a data state of {MAX + 1} bytes"


def test_restart_of_shard_gives_what_its_store_holds_and_without_it_cursor_alone(
    play: Play,
) -> None:
    play('round a-0; offer a-0 1 5 cursor=33 data_state=b"at33"')
    entries = tuple(play.one.entries)
    play("restart started=False")
    play.one.feed(play.one.shard.data_states_read({"a-0": b"at33"}))
    play("start")
    assert play.history.data_states == {"a-0": f"states {digest(1, 1)}"}
    play('follows; see messages.0.cursor 33; see messages.0.data_state b"at33"')
    play.process(entries=entries)
    play("follows")
    assert (play.messages[0].cursor, play.messages[0].HasField("data_state")) == (33, False)
