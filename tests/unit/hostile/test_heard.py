"""Whatever a shard says to a learner or the operator, or one process of a learner to another.

It is taken or refused, takes no more memory than the layout asks for, and ends nothing with a bug.
"""

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.division import Share
from atoll_protos.transfer.frames import FrameError, Whole, transfer_frames
from atoll_protos.transfer.gathering import Gathering
from atoll_syncer.model.effects import EndProcess
from atoll_worker.hosts.coordination import OWN
from atoll_worker.hosts.head import Followed, head_digest
from atoll_worker.hosts.lane_process import LaneSession
from unit.hostile.mutated import Target, check_short, mutated_bytes
from unit.hostile.test_sent import SPARE_BYTES, at_most, parsed
from unit.kube.cluster_values import reply
from unit.kube.world import World
from unit.syncer.peer_side import messages
from unit.syncer.shard_side import KEY as JOB_KEY
from unit.syncer.shard_side import RUN, run_file, side
from unit.syncer.test_fuzz import STEPS, nothing_is_broken, the_log_starts
from unit.worker.learner_side import learner_side
from unit.worker.rig import COUNT, Rig
from unit.worker.test_head import rig_of_a_head
from unit.worker.test_lane_process import CAPTURED, lane_process

VERSION: Final = pb.SliceVersion(slice=0, version=pb.Version(run=RUN, number=1, epoch=1))
PUBLISH: Final = pb.Publish(version=VERSION, tick=1)
OPENING: Final = 7


def bytes_of(*sent: Any) -> list[bytes]:
    return [each.SerializeToString() for each in sent]


def some(kind: Any, *samples: Any) -> st.SearchStrategy[Any]:
    """Messages of a kind: samples with other bytes, and any fields; None where gRPC refuses it."""
    changed = mutated_bytes(bytes_of(*samples)).map(lambda data: parsed(kind, data))
    return st.one_of(changed, changed, messages(kind))


# ------------------------------------------------------------ a learner, of its shards


def words() -> st.SearchStrategy[Any]:
    welcome = pb.Welcome(run=RUN, incarnation=3, epoch=1, session=1, tick=4, newest=[VERSION])
    end = pb.End(code=pb.NOT_ALLOWED, reason="r", remedy="m", model=pb.Model())
    return some(
        pb.ToLearner,
        pb.ToLearner(welcome=welcome),
        pb.ToLearner(call=pb.Call(slice=1, base=1, due=8)),
        pb.ToLearner(tick=pb.Tick(tick=9, length=pb.Length(revision=2, steps=9, ends=[7, 9]))),
        pb.ToLearner(send_held=pb.SendHeld(version=VERSION)),
        pb.ToLearner(final=pb.Final(versions=[VERSION])),
        pb.ToLearner(end=end),
    )


def take_words(said: list[Any]) -> None:
    """As its first words to a learner that dials, or to one that trains."""
    for trains in (True, False):
        one = learner_side(shards=2)
        if trains:
            one.begin()
        else:
            one.feed(one.exchange.start(one.now))
            one.welcome(0)
            one.feed(one.exchange.connected(1, one.now))
        for each in said:
            if each is not None:
                one.feed(one.exchange.message(1, each, one.now))
        one.step()
        one.later(2.0)


def training_rig() -> Rig:
    """A transport that its only shard has welcomed."""
    rig = Rig()
    client: Any = rig.client
    client.dial = client.dials = client.hang_up = client.refuse = lambda *_: None
    exchange, transport = rig.transport.exchange, rig.transport
    transport.feed(exchange.start(0.0))
    transport.feed(exchange.connected(0, 0.0))
    welcome = pb.Welcome(run=RUN, incarnation=1, epoch=1, session=1)
    transport.feed(exchange.message(0, pb.ToLearner(welcome=welcome), 0.0))
    return rig


def payload(value: float) -> bytes:
    return np.full(COUNT, value, np.float32).tobytes()


@st.composite
def publishes(draw: Any) -> list[bytes]:
    """Frames of some, of which some are changed, gone or doubled, or have any head."""
    sent = list[bytes]()
    for number in range(1, draw(st.integers(1, 3)) + 1):
        data = draw(st.sampled_from((payload(number), payload(float("nan")), b"")))
        head = pb.Transfer(publish=PUBLISH, encoding=pb.F32, byte_count=len(data))
        head.publish.version.version.number = number
        if draw(st.booleans()):
            head = draw(some(pb.Transfer, head)) or head
            head.byte_count = len(data)
        for frame in transfer_frames(number, head, data):
            match draw(st.sampled_from(("as it is",) * 8 + ("changed", "gone", "twice"))):
                case "as it is":
                    sent.append(frame)
                case "changed":
                    sent.append(draw(mutated_bytes([frame])))
                case "twice":
                    sent += [frame] * 2
    return sent


async def take_publishes(sent: list[bytes]) -> None:
    rig = training_rig()
    carrier = rig.transport.carrier
    streams = carrier.opened(0, pb.Welcome(session=1), asyncio.Queue())
    try:
        for frame in sent:
            if (whole := streams.take(frame)) is not None:
                await streams.whole(whole)
    except FrameError:
        pass
    assert rig.transport._bug is None
    assert len(carrier.values.candidates) <= len(sent)


def take_frames(sent: list[bytes]) -> None:
    with at_most(4 * COUNT * len(sent) + SPARE_BYTES):
        asyncio.run(take_publishes(sent))


# ------------------------------------------------------------ a learner's processes


def to_heads() -> st.SearchStrategy[Any]:
    head = pb.Transfer(publish=PUBLISH, encoding=pb.F32, byte_count=4 * COUNT)
    verified = pb.Verified(shard=0, opening=OPENING, number=1, digest=head_digest(head))
    return some(
        pb.ToHead,
        pb.ToHead(verified=verified),
        pb.ToHead(prepared=pb.Prepared(order=1, not_finite=["w"])),
        pb.ToHead(placed=pb.Placed(order=2)),
        pb.ToHead(lanes_lost=pb.LanesLost(shard=0, opening=OPENING, reason="r", remedy="m")),
    )


async def take_to_head(said: list[Any]) -> None:
    """Of one lane process, while the other one is silent."""
    rig, head, _ = rig_of_a_head()
    client: Any = rig.client
    client.hang_up = client.refuse = lambda *_: None
    stream: Any = SimpleNamespace(send=lambda **_: None)
    for number in range(2):
        head.processes[number] = Followed(Share(number + 1, number + 2, 3), stream)
    head._arrivals.parties = frozenset({OWN, *head.processes})
    head.sessions[0] = OPENING
    head.prepare(pb.PREPARES_OFFER, 0, (0,), 2)
    transfer = pb.Transfer(publish=PUBLISH, encoding=pb.F32, byte_count=4 * COUNT)
    await head._whole(0, Whole(number=1, head=transfer, payload=bytearray(payload(1.0))))
    for each in said:
        if each is not None and (kind := each.WhichOneof("kind")) not in (None, "beat", "left"):
            head._heard(0, getattr(each, kind))
    assert head._refusal(pb.LaneHello(first=1, stop=2, lanes=3))
    slices = len(head.end.configure.layout.slices)
    assert len(head._arrivals.under_way) + len(head._arrivals.settled) <= 2 * slices
    for asked in head._asked.values():
        asked.outcome.cancel()


def to_lane_processes() -> st.SearchStrategy[Any]:
    head = pb.Transfer(offer=pb.Offer(slice=0), encoding=pb.F32, byte_count=4 * COUNT)
    prepare: dict[str, Any] = {"order": 1, "shard": 0, "fragments": [0], "capture": 2}
    numbered = pb.Numbered(order=1, shard=0, fragment=0, number=9, head=head)
    return some(
        pb.ToLaneProcess,
        pb.ToLaneProcess(prepare=pb.Prepare(what=pb.PREPARES_OFFER, **prepare)),
        pb.ToLaneProcess(prepare=pb.Prepare(what=pb.PREPARES_HELD, **prepare)),
        pb.ToLaneProcess(numbered=numbered),
        pb.ToLaneProcess(keep=pb.Keep(shard=0, fragment=0, number=1)),
        pb.ToLaneProcess(place=pb.PlaceShare(order=1, shard=0, fragment=0, version=1)),
        pb.ToLaneProcess(promote=pb.PromoteShare(shard=0, fragment=0, version=1)),
        pb.ToLaneProcess(closed=pb.LanesClosed(shard=0)),
    )


async def take_to_lane_process(said: list[Any]) -> None:
    """An error ends it (lane_process.run); what it holds is bounded until then."""
    rig, process, _ = lane_process()
    rig.capture(2.0)
    process._from_training(CAPTURED)
    gathering = Gathering(1, lambda _: None, lambda _: None)
    streams: Any = SimpleNamespace(line=SimpleNamespace(add=lambda _: None, share=Share(0, 1, 1)))
    streams.gathering = gathering
    process.sessions[0] = LaneSession(opening=OPENING, streams=streams, verified={})
    transfer = pb.Transfer(publish=PUBLISH, encoding=pb.F32, byte_count=4 * COUNT)
    whole = Whole(number=1, head=transfer, payload=bytearray(payload(1.0)))
    await process._whole(0, OPENING, process.sessions[0].verified, whole)
    for each in said:
        if each is not None and (kind := each.WhichOneof("kind")) not in (None, "beat", "left"):
            with suppress(Exception):
                process._from_head(getattr(each, kind))
            await asyncio.gather(*process.works)
    assert len(process.prepared) <= len(said)
    for session in process.sessions.values():
        if session.task is not None:
            session.task.cancel()


def in_a_loop(take: Any) -> Any:
    def taken(said: list[Any]) -> None:
        with at_most(SPARE_BYTES):
            asyncio.run(take(said))

    return taken


# ------------------------------------------------------------ shards, of each other


def calls() -> st.SearchStrategy[Any]:
    hello = pb.HelloRequest(shard=1, run_hash=run_file(shards=2, steps=STEPS).hash, run=RUN)
    return st.one_of(
        some(pb.HelloRequest, hello),
        some(pb.MarkBegunRequest, pb.MarkBegunRequest(shard=1, run=RUN)),
        some(pb.ReportFinalRequest, pb.ReportFinalRequest(shard=1, file="a", file_digest="b")),
        some(pb.SetOwnerRequest, pb.SetOwnerRequest(slot="a-0", uid="u", word=0)),
    )


def take_calls(asked: list[Any]) -> None:
    one = side(job=run_file(shards=2, steps=STEPS)).start()
    for token, request in enumerate(asked):
        if request is not None and not one.shard.objection(request):
            one.feed(one.shard.registrar_request(token, request, one.now))
        nothing_is_broken(one)
    the_log_starts(one)


def replies() -> st.SearchStrategy[Any]:
    length = pb.Length(revision=1, steps=9, ends=[9])
    return st.one_of(
        some(pb.HelloReply, pb.HelloReply(run=RUN, key=JOB_KEY, length=length)),
        some(pb.MarkBegunReply, pb.MarkBegunReply()),
    )


def take_replies(said: list[Any]) -> None:
    one = side(shard=1, job=run_file(shards=2, steps=STEPS), fresh=False).start()
    for each in said:
        if each is not None:
            one.feed(one.shard.answered(each, one.now))
        one.wait(2)
        if any(isinstance(effect, EndProcess) for effect in one.effects):
            return  # it is of another job, and says so
        nothing_is_broken(one)
    the_log_starts(one)


# ------------------------------------------------------------ the operator, of shards


def statuses() -> st.SearchStrategy[Any]:
    return some(pb.StatusReply, reply(us_east_0="Training", us_east_1="Training"))


def take_statuses(said: list[Any]) -> None:
    world = World()
    world.run()
    for each in said:
        world.shards.replies = [each]
        world.run()
    json.dumps(world.job.get("status"), allow_nan=False)


def lists(each: st.SearchStrategy[Any], most: int = 4) -> st.SearchStrategy[list[Any]]:
    return st.lists(each, min_size=1, max_size=most)


TARGETS: Final[dict[str, Target]] = {
    "words of a shard": (lists(words()), take_words),
    "publishes": (publishes(), take_frames),
    "words of a lane process": (lists(to_heads()), in_a_loop(take_to_head)),
    "words of a head": (lists(to_lane_processes()), in_a_loop(take_to_lane_process)),
    "calls of a shard": (lists(calls()), take_calls),
    "answers of the registrar": (lists(replies()), take_replies),
    "status of a shard": (lists(st.deferred(statuses), 2), take_statuses),
}


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_heard_is_taken_or_refused(target: str) -> None:
    check_short(TARGETS[target], 40)


# ------------------------------------------------------------ what was found


async def test_parts_of_a_slice_that_there_is_not_end_the_session_and_are_not_kept() -> None:
    rig, head, _ = rig_of_a_head()
    ends, client = list[str](), rig.client
    client.hang_up = ends.append  # type: ignore[attr-defined]
    head.sessions[0] = OPENING
    for fragment in range(1, 5):
        head._heard(0, pb.Verified(shard=0, opening=OPENING, fragment=fragment, number=1))
    assert ends == [f"bad transfer: slice {fragment} is unknown" for fragment in range(1, 5)]
    assert not head._arrivals.under_way
