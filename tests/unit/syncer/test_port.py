"""What a session is to be sent: slices, each once, in the order in which they were asked for."""

import asyncio

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.duties.port import SessionPort


async def test_a_slice_waits_once_and_is_waited_for_rule_24() -> None:
    port = SessionPort()
    for fragment in (3, 1, 3):
        port.publish(fragment)
    assert [await port.next_lacking(), await port.next_lacking()] == [3, 1]
    waiting = asyncio.create_task(port.next_lacking())
    await asyncio.sleep(0)
    assert not waiting.done()
    port.publish(2)
    assert await waiting == 2


def test_a_welcome_says_how_many_lanes_a_session_has() -> None:
    port = SessionPort("secret", lanes=3)
    port.send(pb.ToLearner(welcome=pb.Welcome(session=7)))
    assert (port.control[0].welcome.lanes, port.control[0].welcome.secret) == (3, "secret")
