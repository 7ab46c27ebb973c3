"""The messages between a learner's head and its lane processes."""

import dataclasses
from typing import Any

import pytest

from atoll_worker.link.codec import LinkError
from atoll_worker.transport import side
from atoll_worker.transport.side import SIDE, Kind
from unit.worker.fake_transport import RUN_FILE
from unit.worker.test_transport import End

MESSAGES = [
    side.Beat(),
    side.Left(),
    side.Hello(secret="s", first=2, stop=4, lanes=6),
    side.Prepared(order=1, lost=True, not_finite=("a.weight",)),
    side.Verified(shard=1, opening=2, fragment=3, number=4, digest="ab"),
    side.Placed(order=1),
    side.LanesLost(shard=1, opening=2, reason="why", remedy="what to do"),
    side.Opened(shard=1, opening=4, session=2, secret="s"),
    side.Closed(shard=1),
    side.Prepare(order=1, what=Kind.OFFER, shard=1, fragments=(0, 1), capture=6),
    side.Numbered(order=1, shard=1, fragment=2, number=3, head=b"\x00\xff"),
    side.Drop(order=1),
    side.Keep(shard=1, fragment=2, number=3),
    side.Forget(shard=1, fragment=2, number=3),
    side.Place(order=1, shard=1, fragment=2, version=3),
    side.Promote(shard=1, fragment=2, version=3),
    side.Discard(shard=1, fragment=2, version=3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_out_as_it_went_in(message: Any) -> None:
    received = bytearray(SIDE.encode(message)) + b"rest"
    found = SIDE.take_first(received)
    assert found == message
    assert type(found) is type(message)
    assert received == b"rest"


def test_every_kind_of_message_is_tried_here() -> None:
    assert {type(message).__name__ for message in MESSAGES} == set(SIDE.kinds)
    assert all(dataclasses.is_dataclass(kind) for kind in SIDE.kinds.values())


def test_no_secret_is_in_what_may_be_logged() -> None:
    secret = "not to be told"
    opened = side.Opened(shard=1, opening=4, session=2, secret=secret)
    hello = side.Hello(secret=secret, first=2, stop=4, lanes=6)
    configure = dataclasses.replace(End(RUN_FILE).configure, secret=secret)
    for message in (opened, hello, configure):
        assert secret not in repr(message)


def test_a_stranger_makes_no_room_for_a_long_message() -> None:
    with pytest.raises(LinkError, match="the largest has 4096"):
        SIDE.take_first(bytearray(b"\xff\xff\x00\x00"), side.HELLO_BYTES_MAX)
