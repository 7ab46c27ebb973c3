"""What the hosts of a learner do together is done by all of them, or not at all."""

import pytest

from atoll_protos.frames import FrameError
from atoll_worker.link.messages import Adopt, Command, Tick
from atoll_worker.transport.coordination import (
    OWN,
    Arrivals,
    Capture,
    Outcome,
    Placings,
    Preparing,
    Regions,
    Verdict,
)
from atoll_worker.transport.side import Kind, Place, Prepare

KEY, OTHER = (0, 1), (1, 1)
PARTIES = frozenset({OWN, 0, 1})
WHOLE, WAITS = Verdict(whole=True, forgotten=()), Verdict(whole=False, forgotten=())


def adopt(number: int) -> Command:
    return Adopt(shard=0, fragment=1, number=number, blend=0.0)


# ------------------------------------------------------------ offers


def test_an_offer_may_be_sent_when_all_hands_have_their_parts_of_it() -> None:
    preparing = Preparing()
    preparing.begin(7, 0, (0, 1))
    assert preparing.said(1, 7, lost=False, not_finite=("a", "b")) is None
    assert preparing.said(1, 7, lost=False, not_finite=()) is None  # it says so twice
    assert preparing.said(0, 7, lost=False, not_finite=("b",)) == Outcome(False, ("a", "b"))
    assert not preparing.under_way


@pytest.mark.parametrize("first", [0, 1])
def test_a_capture_that_one_hand_has_lost_is_lost_for_all(first: int) -> None:
    preparing = Preparing()
    preparing.begin(7, 0, (0, 1))
    assert preparing.said(first, 7, lost=True, not_finite=()) is None
    assert preparing.said(1 - first, 7, lost=False, not_finite=()) == Outcome(True, ())


def test_what_is_prepared_for_a_session_is_forgotten_with_it() -> None:
    preparing = Preparing()
    preparing.begin(7, 0, (0,))
    preparing.begin(8, 1, (0,))
    assert preparing.closed(0) == [7]
    assert preparing.said(0, 7, lost=False, not_finite=()) is None
    assert preparing.said(0, 8, lost=False, not_finite=()) == Outcome(False, ())


# ------------------------------------------------------------ versions


def test_a_version_has_arrived_when_all_have_their_parts_of_one_transfer_rule_34() -> None:
    arrivals = Arrivals(PARTIES)
    assert arrivals.verified(0, KEY, 3, "head") == WAITS
    assert arrivals.verified(OWN, KEY, 3, "head") == WAITS
    assert arrivals.verified(0, KEY, 3, "head") == WAITS  # again the same one
    assert arrivals.verified(1, OTHER, 3, "head") == WAITS  # another slice
    assert arrivals.verified(1, KEY, 3, "head") == WHOLE


def test_parts_of_two_transfers_never_make_a_version_rule_33() -> None:
    arrivals = Arrivals(PARTIES)
    assert arrivals.verified(OWN, KEY, 3, "older") == WAITS
    assert arrivals.verified(0, KEY, 3, "older") == WAITS
    assert arrivals.verified(0, KEY, 4, "newer") == Verdict(whole=False, forgotten=(3,))
    assert arrivals.verified(1, KEY, 4, "newer") == WAITS
    assert arrivals.verified(1, KEY, 3, "older") == Verdict(whole=False, forgotten=(3,))
    assert arrivals.verified(OWN, KEY, 4, "newer") == WHOLE


def test_what_comes_late_of_a_transfer_that_is_decided_is_forgotten() -> None:
    arrivals = Arrivals(frozenset({OWN, 0}))
    arrivals.verified(OWN, KEY, 5, "head")
    assert arrivals.verified(0, KEY, 5, "head") == WHOLE
    assert arrivals.verified(0, KEY, 4, "older") == Verdict(whole=False, forgotten=(4,))
    assert not any(arrivals.under_way.values())


def test_heads_that_differ_between_the_hosts_are_no_version() -> None:
    arrivals = Arrivals(PARTIES)
    arrivals.verified(OWN, KEY, 3, "head")
    with pytest.raises(FrameError, match="transfer 3 has another head"):
        arrivals.verified(0, KEY, 3, "another")


def test_the_next_session_counts_its_transfers_from_the_start() -> None:
    arrivals = Arrivals(frozenset({OWN, 0}))
    for key in (KEY, OTHER):
        arrivals.verified(OWN, key, 9, "head")
        arrivals.verified(0, key, 9, "head")
        arrivals.verified(0, key, 10, "head")
    arrivals.closed(KEY[0])
    assert arrivals.verified(OWN, KEY, 1, "head") == WAITS
    assert arrivals.verified(0, KEY, 1, "head") == WHOLE
    assert arrivals.verified(OWN, OTHER, 10, "head") == WHOLE  # that of the other shard goes on


# ------------------------------------------------------------ adoptions


def test_a_version_that_one_host_has_not_placed_is_not_adopted_rule_31() -> None:
    placings = Placings()
    placings.place(1, (0, 1))
    assert placings.command(adopt(1)) == []
    assert placings.placed(0, 1) == []
    assert placings.placed(0, 1) == []
    assert placings.placed(1, 1) == [adopt(1)]


def test_commands_keep_their_order_behind_what_is_to_be_placed() -> None:
    placings = Placings()
    assert placings.command(Tick(tick=1)) == [Tick(tick=1)]
    placings.place(1, (0,))
    assert placings.command(adopt(1)) == []
    placings.place(2, (0,))
    assert placings.command(adopt(2)) == []
    assert placings.command(Tick(tick=2)) == []
    assert placings.placed(0, 2) == []  # the one before it is not placed
    assert placings.placed(0, 1) == [adopt(1), adopt(2), Tick(tick=2)]
    assert not placings.line


def test_however_long_a_host_takes_one_tick_waits() -> None:
    placings = Placings()
    placings.place(1, (0,))
    assert placings.command(adopt(1)) == []
    for tick in range(1, 100):
        assert placings.command(Tick(tick=tick)) == []
    assert placings.placed(0, 1) == [adopt(1), Tick(tick=99)]


def test_without_hands_every_command_is_given_at_once() -> None:
    placings = Placings()
    placings.place(1, ())
    assert placings.command(adopt(1)) == [adopt(1)]


# ------------------------------------------------------------ a hand


def prepare(capture: int) -> Prepare:
    return Prepare(order=1, what=Kind.OFFER, shard=0, fragments=(1,), capture=capture)


def test_an_offer_is_formed_from_the_capture_that_its_training_process_has_reported() -> None:
    regions = Regions({KEY: 4})
    assert regions.captured(prepare(6)) is Capture.AWAITED
    regions.captures[KEY] = 6
    assert regions.captured(prepare(6)) is Capture.THERE
    regions.captures[KEY] = 8
    assert regions.captured(prepare(6)) is Capture.LOST


def place(version: int) -> Place:
    return Place(order=version, shard=0, fragment=1, version=version)


def test_an_adopt_region_is_written_again_when_its_adoption_is_reported() -> None:
    regions = Regions({})
    assert regions.place(place(1))
    assert not regions.place(place(2))
    assert regions.adopted(OTHER) is None
    assert regions.adopted(KEY) == place(2)
    assert not regions.place(place(3))
    assert regions.adopted(KEY) == place(3)
    assert regions.adopted(KEY) is None
    assert regions.place(place(4))
