"""Whatever a shard says to a learner or the operator.

It is taken or refused, takes no more memory than the layout asks for, and ends nothing with a bug.
"""

import asyncio
import json
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import FrameError, transfer_frames
from atoll_protos.transfer.gathering import Gathering
from atoll_syncer.model.effects import EndProcess
from unit.hostile.mutated import Target, check_short, mutated_bytes
from unit.hostile.test_sent import SPARE_BYTES, at_most, parsed
from unit.kube.cluster_values import reply
from unit.kube.world import World
from unit.syncer.peer_side import messages
from unit.syncer.shard_side import KEY as JOB_KEY
from unit.syncer.shard_side import RUN, run_file, side
from unit.syncer.test_fuzz import STEPS, nothing_is_broken, the_log_starts
from unit.worker.fake_driver import learner_side
from unit.worker.fake_ends import COUNT, Rig

VERSION: Final = pb.SliceVersion(slice=0, version=pb.Version(run=RUN, number=1, epoch=1))
PUBLISH: Final = pb.Publish(version=VERSION, tick=1)


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
    gathering = Gathering(1, streams.admit)
    try:
        for frame in sent:
            if (whole := gathering.feed(0, frame)) is not None:
                await streams.whole(whole)
    except FrameError:
        pass
    assert rig.transport._bug is None
    assert len(carrier.values.candidates) <= len(sent)


def take_frames(sent: list[bytes]) -> None:
    with at_most(4 * COUNT * len(sent) + SPARE_BYTES):
        asyncio.run(take_publishes(sent))


# ------------------------------------------------------------ shards, of each other


def calls() -> st.SearchStrategy[Any]:
    hello = pb.HelloRequest(shard=1, run_hash=run_file(shards=2, steps=STEPS).hash, run=RUN)
    return st.one_of(
        some(pb.HelloRequest, hello),
        some(pb.MarkBegunRequest, pb.MarkBegunRequest(shard=1, run=RUN)),
        some(pb.ReportFinalRequest, pb.ReportFinalRequest(shard=1, file="a", file_digest="b")),
        some(pb.SetOwnerRequest, pb.SetOwnerRequest(slot="a-0", uid="u", generation=0)),
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
    "calls of a shard": (lists(calls()), take_calls),
    "answers of the registrar": (lists(replies()), take_replies),
    "status of a shard": (lists(st.deferred(statuses), 2), take_statuses),
}


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_heard_is_taken_or_refused(target: str) -> None:
    check_short(TARGETS[target], 40)
