"""Sessions of several lanes with a real shard process (rules 32 to 34)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs
from atoll_protos.codecs import Wire
from atoll_protos.names import PROTOCOL
from atoll_protos.run import RunFile
from wire.lanes_side import LanedPeer, laned_peer
from wire.raw_peer import RUN_FILE, SECONDS_MAX, ShardUnderTest, shard, until

STEPS = 4  # of an offer
STEPS_MAX = 1000
LANES = (1, 1), (3, 1), (4, 2)


async def trained(served: ShardUnderTest, lanes: tuple[int, int], wire: Wire) -> tuple[str, bytes]:
    """The digest and the bytes of version 1, merged from offers of two learners."""
    run_file = with_wire(wire)
    async with (
        laned_peer(served.endpoint, "here-0", lanes[0], run_file) as first,
        laned_peer(served.endpoint, "here-1", lanes[1], run_file) as other,
    ):
        await first.join()
        await first.one.until("send_seed")
        for fragment in (0, 1):
            await first.send(*first.seed(fragment))
        await other.join()
        for each in (first, other):
            await each.version_0()
        called = await train_until_called(first, other)
        await other.send(*other.offer(called, STEPS, seed=2))
        mine = first.offer(called, STEPS, seed=1)
        last = first.lanes - 1
        if last:
            await first.send(*mine, *range(last))
            assert served.status.commits == 0  # all parts but one are nothing
            await first.write(last, first.part(last, *mine))
        else:
            await first.send(*mine)
        whole, same = await asyncio.gather(first.publish(called, 1), other.publish(called, 1))
        assert whole.payload == same.payload
        digest = whole.head.publish.version.version.digest
        if not whole.head.publish.difference:
            assert codecs.digest(whole.payload) == digest
        return digest, bytes(whole.payload)


async def train_until_called(first: LanedPeer, other: LanedPeer) -> int:
    """Both make steps until a slice is due; returns which one."""
    calls = asyncio.gather(first.one.until("call"), other.one.until("call"))
    for t_m in range(STEPS_MAX):
        await asyncio.gather(first.report(t_m), other.report(t_m))
        if t_m >= STEPS and (await asyncio.wait([calls], timeout=0.05))[0]:
            break
    mine, others = await calls
    assert mine.slice == others.slice
    return int(mine.slice)


def with_wire(wire: Wire) -> RunFile:
    sync = replace(RUN_FILE.sync, wire_up=wire, wire_down=wire, quorum=2, grace=False)
    return replace(RUN_FILE, sync=sync)


@pytest.mark.parametrize(
    "wire",
    [Wire.INT4, *(pytest.param(w, marks=pytest.mark.long) for w in Wire if w is not Wire.INT4)],
)
def test_versions_do_not_depend_on_the_number_of_lanes_rule_32(tmp_path: Path, wire: Wire) -> None:
    with ExitStack() as stack:
        found = []
        for lanes in LANES:
            folder = tmp_path / f"{lanes}"
            folder.mkdir()
            served = stack.enter_context(shard(folder, run_file=with_wire(wire)))
            found.append(asyncio.run(trained(served, lanes, wire)))
    assert len(set(found)) == 1, found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardUnderTest]:
    """A shard that is never seeded: whoever joins first is asked."""
    with shard(tmp_path_factory.mktemp("shard")) as process:
        yield process


async def asked(one: LanedPeer, *lanes: int) -> None:
    """It has joined with these lanes, and is asked for version 0."""
    answer = await one.join(*lanes)
    assert answer.HasField("welcome"), answer
    await one.one.until("send_seed")


async def whole_on_a_lane(one: LanedPeer) -> None:
    head, data = one.seed(0)
    one.number, one.lanes = 1, 1
    await one.write(0, one.part(0, head, data))


async def twice(one: LanedPeer) -> None:
    await one.send(*one.seed(0), 1)
    await one.write(1, one.part(1, *one.seed(0)))


async def parts_of_two_slices(one: LanedPeer) -> None:
    await one.send(*one.seed(0), 0)
    await one.write(1, one.part(1, *one.seed(1)))
    await one.write(0, one.part(0, *one.seed(1)))


async def corrupted(one: LanedPeer) -> None:
    one.number = 1
    head, chunk, trailer = one.part(1, *one.seed(0))
    await one.write(1, [head, chunk[:-1] + bytes([chunk[-1] ^ 1]), trailer])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (whole_on_a_lane, "the layout says"),
        (twice, "numbers must grow"),
        (parts_of_two_slices, "numbers must grow"),
        (corrupted, "the checksum is wrong"),
    ],
)
def test_a_bad_part_ends_its_session_alone(
    bad: Callable[[LanedPeer], Awaitable[None]], reason: str, served: ShardUnderTest
) -> None:
    async def scenario() -> None:
        async with (
            laned_peer(served.endpoint, "here-0", 2) as first,
            laned_peer(served.endpoint, "here-1", 2) as other,
        ):
            await asked(first)
            assert (await other.join()).HasField("welcome")
            await bad(first)
            end = await first.one.until("end")
            assert end.code == pb.BAD_TRANSFER
            assert reason in end.reason
            await other.one.until("send_seed")

    asyncio.run(scenario())


async def refused(one: LanedPeer, lane: str, secret: str = "") -> grpc.StatusCode:
    stream = one.one.open_bulk(secret or one.one.welcome.secret, lane)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asyncio.wait_for(stream.read(), SECONDS_MAX)
    return error.value.code()


def test_each_lane_opens_once_with_number_and_secret_and_the_end_of_one_ends_the_session(
    served: ShardUnderTest,
) -> None:
    async def scenario() -> None:
        async with laned_peer(served.endpoint, "here-0", 3) as one:
            await asked(one, 0, 2)
            assert await refused(one, "1", "0" * 32) == grpc.StatusCode.PERMISSION_DENIED
            for lane in ("3", "-1", "x", "9" * 500):
                assert await refused(one, lane) == grpc.StatusCode.NOT_FOUND
            assert await refused(one, "2") == grpc.StatusCode.ALREADY_EXISTS
            one.streams[2].cancel()
            with pytest.raises(AssertionError, match="without a word"):
                await one.one.until("end")
            assert await refused(one, "1") == grpc.StatusCode.NOT_FOUND  # too late

    asyncio.run(scenario())


def test_a_learner_trains_only_with_all_its_lanes_rule_34(served: ShardUnderTest) -> None:
    def state() -> pb.SlotState:
        return next(s.state for s in served.status.slots if s.slot == "here-0")

    async def scenario() -> None:
        async with laned_peer(served.endpoint, "here-0", 2) as one:
            await asked(one, 0)
            await one.report(1)
            await until(lambda: state() == pb.SLOT_RECOVERING)
            one.open(1)
            await until(lambda: state() == pb.SLOT_TRAINING)

    asyncio.run(scenario())


@pytest.mark.parametrize(("lanes", "observer"), [(257, False), (2, True)])
def test_more_lanes_than_a_session_may_have_are_refused_by_name(
    lanes: int, observer: bool, served: ShardUnderTest
) -> None:
    async def scenario() -> None:
        async with laned_peer(served.endpoint, "here-2", lanes) as one:
            call = one.one.stub.Session()
            await call.write(pb.ToShard(join=_join(one, observer=observer)))
            end = (await call.read()).end
            assert end.code == pb.TOO_MANY_LANES
            assert f"asks for {lanes} lanes" in end.reason

    asyncio.run(scenario())


def _join(one: LanedPeer, *, observer: bool) -> pb.Join:
    return pb.Join(
        protocol=PROTOCOL,
        run_hash=RUN_FILE.hash,
        layout_digest=one.one.layout.digest,
        slot="" if observer else one.one.slot,
        instance="new",
        lanes=one.lanes,
        observer=observer,
    )
