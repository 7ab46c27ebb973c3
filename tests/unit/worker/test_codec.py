import dataclasses
import math

import pytest

from atoll_worker.link import codec
from atoll_worker.link.codec import LinkError, decode, encode
from atoll_worker.link.messages import (
    Adopt,
    Boundary,
    Capture,
    Companion,
    Evaluated,
    Fail,
    Finished,
    GiveCompanion,
    JobLength,
    Leaving,
    Listening,
    Message,
    Proceed,
    Start,
    Tick,
    Warned,
)
from unit.worker.link_side import CONFIGURE

MESSAGES = [
    dataclasses.replace(CONFIGURE, lanes=4, own_lanes=(2, 4), head="10.0.0.1:9", secret="s"),
    Evaluated(tick=3, loss=2.5, tokens=100, seconds=0.5),
    Adopt(shard=1, fragment=2, number=3, blend=0.5),
    Boundary(
        own_steps=1,
        tokens=2,
        loss=1.5,
        step_seconds=0.1,
        blocked_seconds=0.0,
        cursor=4,
        adopted=((0, 1, 2), (1, 1, 3)),
        captured=((0, 0),),
        again=True,
        data_state=b"\x00\xff and so on",
    ),
    Capture(slices=((0, 1), (1, 1))),
    Companion(changed=True, byte_count=3),
    Fail(exit_code=77, reason="a higher incarnation"),
    Finished(),
    GiveCompanion(changed=True),
    Listening(port=40000),
    Leaving(reason="terminated"),
    Proceed(),
    Start(incarnation=1, cursor=2, tick=3, data_state=b""),
    Tick(tick=9),
    Warned(reason="a layer was unfrozen"),
    JobLength(steps=200, tokens=None),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_out_as_it_went_in(message: Message) -> None:
    assert decode(encode(message)[4:]) == message


def test_every_kind_of_message_is_tried_here() -> None:
    assert {type(message).__name__ for message in MESSAGES} == set(codec.LINK.kinds)


def test_a_loss_may_be_unknown() -> None:
    boundary = next(message for message in MESSAGES if isinstance(message, Boundary))
    unknown = dataclasses.replace(boundary, loss=math.nan)
    decoded = decode(encode(unknown)[4:])
    assert isinstance(decoded, Boundary)
    assert math.isnan(decoded.loss)


NO_BYTES = b'{"kind":"Leaving","reason":{"bytes in base64":"?"}}'


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"kind":"Nothing"}', b'{"kind":"Tick"}', NO_BYTES]
)
def test_anything_else_is_an_error_that_says_so(body: bytes) -> None:
    with pytest.raises(LinkError, match="not a message of the link"):
        decode(body)


def test_a_length_that_no_message_has_is_an_error_before_anything_is_kept() -> None:
    received = bytearray(codec.LENGTH.pack(codec.MESSAGE_BYTES_MAX + 1))
    with pytest.raises(LinkError, match="the largest has"):
        codec.take_first(received)


def test_a_message_is_taken_when_it_is_whole_and_what_follows_stays() -> None:
    received = bytearray()
    for byte in encode(Proceed()):
        assert codec.take_first(received) is None
        received.append(byte)
    received += b"rest"
    assert codec.take_first(received) == Proceed()
    assert received == b"rest"
