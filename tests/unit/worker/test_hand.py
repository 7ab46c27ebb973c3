"""A lane process, whose head and whose training process are played."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

from atoll_worker.link.messages import Boundary
from atoll_worker.transport import side
from atoll_worker.transport.hand import LaneProcess, Session
from atoll_worker.transport.side import Kind
from unit.worker.test_transport import KEY, Rig, full

CAPTURED = Boundary(
    own_steps=1,
    tokens=1,
    loss=0.0,
    step_seconds=0.0,
    blocked_seconds=0.0,
    cursor=0,
    adopted=(),
    captured=(KEY,),
)


def lane_process() -> tuple[Rig, LaneProcess, list[Any]]:
    """One that holds a version of its slice, and what it tells its head."""
    rig, told = Rig(), list[Any]()
    nobody: Any = None
    hand = LaneProcess(
        end=rig.transport.end, numbers=rig.numbers, open_channel=nobody, ready=nobody
    )
    stream: Any = SimpleNamespace(send=told.append)
    hand.stream = stream
    hand.values.bases[KEY] = full(5.0)
    return rig, hand, told


def wanted(order: int) -> side.Prepare:
    shard, fragment = KEY
    return side.Prepare(order=order, what=Kind.OFFER, shard=shard, fragments=(fragment,), capture=2)


async def formed(hand: LaneProcess) -> None:
    """All that was begun is over."""
    await asyncio.gather(*hand.works)


def test_an_offer_is_formed_when_its_capture_is_reported() -> None:
    rig, hand, told = lane_process()

    async def scenario() -> None:
        hand._from_head(wanted(1))
        assert not hand.works
        rig.capture(2.0)
        hand._from_training(CAPTURED)
        await formed(hand)

    asyncio.run(scenario())
    assert told == [side.Prepared(order=1)]


def test_a_session_whose_offer_cannot_be_formed_ends_and_is_not_waited_for() -> None:
    """As where the head has no memory for it: the next session may have more."""
    rig, hand, told = lane_process()
    nothing: Any = None
    hand.sessions[0] = Session(opening=7, line=nothing, streams=nothing, verified={})

    def no_memory(*_: Any) -> Any:
        raise MemoryError("no room for an offer")

    rig.numbers.difference = no_memory  # type: ignore[method-assign, assignment]

    async def scenario() -> None:
        rig.capture(2.0)
        hand._from_training(CAPTURED)
        hand._from_head(wanted(1))
        await formed(hand)

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    (lost,) = told
    assert isinstance(lost, side.LanesLost)
    assert (lost.shard, lost.opening, lost.remedy) == (0, 7, "")
    assert "no room for an offer" in lost.reason
    assert [line["event"] for line in lines] == ["an offer is not formed"]
    hand._from_head(side.Closed(shard=0))
    assert not hand.prepared


def test_a_bug_ends_a_lane_process(monkeypatch: pytest.MonkeyPatch) -> None:
    _, hand, _ = lane_process()

    def bug(self: LaneProcess, message: Any) -> None:
        raise AssertionError("an invariant does not hold")

    monkeypatch.setattr(LaneProcess, "_from_training", bug)
    with pytest.raises(AssertionError):
        hand._hear_training(CAPTURED)
    assert hand.gone.is_set()
    assert isinstance(hand.bug, AssertionError)
