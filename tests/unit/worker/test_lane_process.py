"""A lane process, whose head and whose training process are played."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.transfer.division import Share
from atoll_worker.hosts.lane_process import LaneProcess, LaneSession
from atoll_worker.link.messages import Boundary
from unit.worker.rig import KEY, Rig, full

CAPTURED = Boundary(
    own_steps=1, tokens=1, loss=0.0, step_seconds=0.0, blocked_seconds=0.0, cursor=0,
    adopted=(), captured=(KEY,),
)  # fmt: skip


def lane_process() -> tuple[Rig, LaneProcess, list[Any]]:
    """One that holds a version of its slice, and what it tells its head."""
    rig, told = Rig(), list[Any]()
    nobody: Any = None
    process = LaneProcess(
        end=rig.transport.end, numbers=rig.numbers, open_channel=nobody, ready=nobody
    )
    stream: Any = SimpleNamespace(send=lambda **message: told.extend(message.values()))
    process.stream = stream
    process.values.bases[KEY] = full(5.0)
    return rig, process, told


def wanted(order: int) -> pb.Prepare:
    offer = pb.PREPARES_OFFER
    return pb.Prepare(order=order, what=offer, shard=KEY[0], fragments=KEY[1:], capture=2)


async def offered(rig: Rig, process: LaneProcess) -> None:
    """A capture is reported, an offer is wanted of it, and all that was begun is over."""
    rig.capture(2.0)
    process._from_training(CAPTURED)
    process._from_head(wanted(1))
    await asyncio.gather(*process.works)


async def test_an_offer_is_formed_when_its_capture_is_reported() -> None:
    rig, process, told = lane_process()
    process._from_head(wanted(1))
    assert not process.works
    rig.capture(2.0)
    process._from_training(CAPTURED)
    await asyncio.gather(*process.works)
    assert told == [pb.Prepared(order=1)]


def test_an_offer_whose_capture_has_been_made_again_is_lost() -> None:
    _, process, told = lane_process()
    process._from_training(CAPTURED)
    process._from_training(CAPTURED)
    process._from_head(wanted(1))
    assert told == [pb.Prepared(order=1, lost=True)]
    assert not process.prepared


def test_an_adopt_region_is_written_again_when_its_adoption_is_reported() -> None:
    _, process, told = lane_process()
    for order in (1, 2):
        process.values.candidates[*KEY, order] = full(order)
        process._from_head(pb.PlaceShare(order=order, shard=0, fragment=0, version=order))
    assert told == [pb.Placed(order=1)]
    adopted = replace(CAPTURED, captured=(), adopted=((*KEY, 1),))
    process._from_training(adopted)
    assert told == [pb.Placed(order=1), pb.Placed(order=2)]
    process._from_head(pb.PlaceShare(order=3, shard=0, fragment=0, version=2))
    process._from_training(replace(CAPTURED, captured=(), adopted=()))
    assert len(told) == 2
    process._from_training(adopted)
    process._from_training(adopted)
    process._from_head(pb.PlaceShare(order=4, shard=0, fragment=0, version=2))
    assert told[2:] == [pb.Placed(order=3), pb.Placed(order=4)]


async def test_a_session_whose_offer_cannot_be_formed_ends_and_is_not_waited_for() -> None:
    """As where the head has no memory for it: the next session may have more."""
    rig, process, told = lane_process()
    nothing: Any = None
    process.sessions[0] = LaneSession(opening=7, streams=nothing, verified={})

    def no_memory(*_: Any) -> Any:
        raise MemoryError("no room for an offer")

    rig.numbers.difference = no_memory  # type: ignore[method-assign, assignment]
    with structlog.testing.capture_logs() as lines:
        await offered(rig, process)
    (lost,) = told
    assert isinstance(lost, pb.LanesLost)
    assert (lost.shard, lost.opening, lost.remedy) == (0, 7, "")
    assert "no room for an offer" in lost.reason
    assert [line["event"] for line in lines] == ["an offer is not formed"]
    process._from_head(pb.LanesClosed(shard=0))
    assert not process.prepared


async def test_parts_leave_under_the_number_and_head_that_the_first_host_has_given() -> None:
    rig, process, _ = lane_process()
    added: list[Any] = []
    line: Any = SimpleNamespace(add=added.append, share=Share(1, 2, 2))
    streams: Any = SimpleNamespace(line=line)
    process.sessions[0] = LaneSession(opening=7, streams=streams, verified={})
    size = rig.transport.end.configure.layout.slice(*KEY).form.byte_count(pb.F32)
    head = pb.Transfer(offer=pb.Offer(slice=0), encoding=pb.F32, byte_count=size)
    await offered(rig, process)
    process._from_head(pb.Numbered(order=1, shard=0, fragment=0, number=9, head=head))
    (transfer,) = added
    assert (transfer.number, transfer.outgoing.head) == (9, head)
    assert not process.prepared


def test_a_bug_ends_a_lane_process(monkeypatch: pytest.MonkeyPatch) -> None:
    _, process, _ = lane_process()

    def bug(self: LaneProcess, message: Any) -> None:
        raise AssertionError("an invariant does not hold")

    monkeypatch.setattr(LaneProcess, "_from_training", bug)
    with pytest.raises(AssertionError):
        process._hear_training(CAPTURED)
    assert process.gone.is_set()
    assert isinstance(process.bug, AssertionError)


async def test_a_lane_process_whose_head_says_nonsense_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, process, _ = lane_process()
    end: Any = rig.transport.end
    end.configure = replace(end.configure, head="head:1", secret="s")

    async def ready(*_: Any) -> None:
        """The head is there."""

    async def run(on_message: Any) -> str:
        on_message(pb.Prepare(order=1, what=pb.PREPARES_OFFER, shard=7))
        raise AssertionError("not reached")

    process.ready = ready
    stream = SimpleNamespace(send=lambda **_: None, run=run)
    monkeypatch.setattr("atoll_worker.hosts.side.dial", lambda *_: None)
    monkeypatch.setattr("atoll_worker.hosts.side.followed", lambda *_: stream)
    with structlog.testing.capture_logs() as lines:
        assert await process.run() == ExitCode.TRY_AGAIN
    (line,) = lines
    assert line["event"].startswith("the transport process of rank 0 has said what cannot be done")
