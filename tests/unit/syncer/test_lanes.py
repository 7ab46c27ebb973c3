"""What the rules make of a session of several lanes: transfers of several slices at a time."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode, exit_code_of
from atoll_syncer.model.effects import EndSession, Stage
from atoll_syncer.model.roster import Credit, Session
from unit.syncer.shard_side import Side, begun, step_all
from unit.syncer.test_offers import transfer


def called(*fragments: int, base: int = 0) -> tuple[Side, int]:
    """A session that has a Call of each of these slices."""
    one, (session, _) = begun("a-0", "a-1", quorum=2)
    step_all(one, [session, _], range(1, 6))
    for fragment in fragments:
        one.state.sessions.open[session].credits[fragment] = Credit(base=base, called_at=1.0, t_m=5)
    return one, session


def sender(one: Side, session: int) -> Session:
    return one.state.sessions.open[session]


def start(one: Side, session: int, head: pb.Transfer) -> pb.Transfer:
    one.feed(one.shard.transfer_started(session, head, one.now))
    assert one.take(EndSession) == []
    return head


def whole(head: pb.Transfer) -> pb.Transfer:
    """As the driver names it when all parts are here: with another number of bytes."""
    named = pb.Transfer()
    named.CopyFrom(head)
    named.byte_count += 77
    return named


def test_offers_of_two_slices_may_come_at_a_time_each_with_its_data_state_rule_28() -> None:
    one, session = called(0, 1)
    older = start(one, session, transfer(4, fragment=1, data_state=b"four", cursor=40))
    newer = start(one, session, transfer(5, fragment=0, data_state=b"five", cursor=50))
    one.feed(one.shard.transfer_verified(session, whole(older), one.now))
    assert one.state.rounds.open[1].data_states == {"a-0": b"four"}
    assert [*sender(one, session).receiving] == [0]
    one.feed(one.shard.transfer_verified(session, whole(newer), one.now))
    assert sender(one, session).receiving == {}
    assert sender(one, session).data_state == b"five"


def test_one_with_the_same_data_state_means_that_of_its_own_place_in_the_order_rule_28() -> None:
    one, session = called(0, 1)
    sender(one, session).data_state = b"four"
    same = start(one, session, transfer(4, fragment=1, same_data_state=True, cursor=40))
    start(one, session, transfer(5, fragment=0, data_state=b"five", cursor=50))
    one.feed(one.shard.transfer_verified(session, same, one.now))
    assert one.state.rounds.open[1].data_states == {"a-0": b"four"}


def test_a_bad_part_counts_against_its_own_offer_alone() -> None:
    one, session = called(0, 1)
    bad, _ = start(one, session, transfer(5)), start(one, session, transfer(5, fragment=0))
    one.state.rounds.refused.clear()
    one.feed(one.shard.transfer_rejected(session, "not finite", one.now, bad, final=True))
    assert one.state.rounds.open[1].refused == {"a-0"}
    assert [*sender(one, session).receiving] == [0]  # which goes on
    assert one.take(EndSession) == []


def test_one_that_a_newer_capture_has_dropped_is_no_more_under_way_rule_33() -> None:
    one, session = called(1)
    older = start(one, session, transfer(4))
    sender(one, session).credits[1] = Credit(base=0, called_at=2.0, t_m=5)
    newer = start(one, session, transfer(5))
    one.feed(one.shard.transfer_rejected(session, "not finite", one.now, older, final=False))
    assert one.state.rounds.refused == {}  # it is not the one that comes
    one, session = called(1)
    older = start(one, session, transfer(4, same_data_state=False, data_state=b"4", cursor=4))
    sender(one, session).credits[1] = Credit(base=0, called_at=2.0, t_m=5)
    newer = start(one, session, transfer(5))
    for head in (older, newer):  # the older one was whole already, and its values examined
        one.feed(one.shard.transfer_verified(session, head, one.now))
    assert [stage.capture for stage in one.take(Stage)] == [4, 5]
    assert sender(one, session).receiving == {}


@pytest.mark.parametrize(("lanes", "observer", "fits"), [(256, False, True), (257, False, False)])
def test_a_join_asks_for_as_many_lanes_as_a_session_may_have_rule_34(
    lanes: int, observer: bool, fits: bool
) -> None:
    one, _ = begun("a-0")
    one.join("a-1", lanes=lanes, observer=observer)
    ends = [each.end for each in one.take(EndSession)]
    assert [end.code for end in ends] == ([] if fits else [pb.TOO_MANY_LANES])
    assert all(f"{lanes} lanes" in end.reason for end in ends)
    for end in ends:  # another try would ask for as many
        assert not end.retry
        assert exit_code_of(end.code) is ExitCode.BAD_INPUT
        assert "ATOLL_LANES" in end.remedy


def test_a_slot_is_called_only_once_all_its_lanes_are_open_rule_34() -> None:
    one, (other,) = begun("a-0")
    session = one.join("a-1", lanes=2)
    slot = one.state.sessions.slots["a-1"]
    for opened in (0, 1, 2):
        if opened:
            one.feed(one.shard.lane_opened(session, one.now))
        one.report(session, 5)
        assert (slot.state(one.now) == pb.SLOT_TRAINING) == (opened == 2)
    one.feed(one.shard.lane_opened(99, one.now))  # of a session that is over
    assert slot.lanes_missing == 0
    assert other
