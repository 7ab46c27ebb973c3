"""What the hosts of a learner do together is done by all of them, or not at all."""

import pytest

from atoll_protos.transfer.frames import FrameError
from atoll_worker.hosts.coordination import (
    OWN,
    Arrivals,
    Placings,
    VerifiedParts,
)
from atoll_worker.link.messages import Adopt, Message, Tick

KEY, OTHER = (0, 1), (1, 1)
PARTIES = frozenset({OWN, 0, 1})
WHOLE, WAITS = VerifiedParts(whole=True, forgotten=()), VerifiedParts(whole=False, forgotten=())


def adopt(number: int) -> Message:
    return Adopt(shard=0, fragment=1, number=number, blend=0.0)


def test_a_version_has_arrived_when_all_have_their_parts_of_one_transfer_rule_34() -> None:
    arrivals = Arrivals(PARTIES)
    assert arrivals.verified(0, KEY, 3, "head") == WAITS
    assert arrivals.verified(OWN, KEY, 3, "head") == WAITS
    assert arrivals.verified(0, KEY, 3, "head") == WAITS  # again the same one
    assert arrivals.verified(1, OTHER, 3, "head") == WAITS  # another slice
    with pytest.raises(FrameError, match="transfer 3 has another head"):
        arrivals.verified(1, KEY, 3, "another")
    assert arrivals.verified(1, KEY, 3, "head") == WHOLE


def test_parts_of_two_transfers_never_make_a_version_rule_33() -> None:
    arrivals = Arrivals(PARTIES)
    assert arrivals.verified(OWN, KEY, 3, "older") == WAITS
    assert arrivals.verified(0, KEY, 3, "older") == WAITS
    assert arrivals.verified(0, KEY, 4, "newer") == VerifiedParts(whole=False, forgotten=(3,))
    assert arrivals.verified(1, KEY, 4, "newer") == WAITS
    assert arrivals.verified(1, KEY, 3, "older") == VerifiedParts(whole=False, forgotten=(3,))
    assert arrivals.verified(OWN, KEY, 4, "newer") == WHOLE
    assert arrivals.verified(OWN, KEY, 3, "older") == VerifiedParts(whole=False, forgotten=(3,))
    assert not any(arrivals.under_way.values())


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
    placings.place(1, ())  # without lane processes nothing waits
    assert placings.command(adopt(1)) == [adopt(1)]
    placings.place(2, (0,))
    assert placings.command(adopt(2)) == []
    for tick in range(1, 100):
        assert placings.command(Tick(tick=tick)) == []
    assert placings.placed(0, 2) == [adopt(2), Tick(tick=99)]
