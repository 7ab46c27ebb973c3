"""The election and the fence, against an API server on loopback: at most one leads, and writes.

Their clock stands still until a test moves it, so that a machine that stalls costs nobody a Lease.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges import api
from atoll_operator.kube.edges.api import path
from atoll_operator.kube.edges.election import Fence, NotLeaderError, Times
from atoll_operator.kube.edges.lease import Election
from atoll_operator.kube.edges.polls import Syncers
from atoll_protos.v1.atoll_pb2_grpc import SyncerServicer, add_SyncerServicer_to_server
from unit.kube.api_server import ApiServer, connected, until

LEASES = "/apis/coordination.k8s.io/v1/leases"
OWN = path("Lease", "demo", "atoll-operator")
CHILD = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c", "namespace": "demo"}}
POD = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "demo"}}
CHILDREN = api.path("ConfigMap", "demo", "c")
TIMES = Times(lease_seconds=200, renew_seconds_max=100.0, retry_seconds=0.03)
AWAY = (503, dict[str, str]())
LOOKS = 10  # of which each of two replicas makes some


@dataclass
class Clock:
    """In place of the module `time`: it moves when a test says so."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the fence and of the election."""
    clock = Clock()
    for module in ("election", "lease"):
        monkeypatch.setattr(f"atoll_operator.kube.edges.{module}.time", clock)
    return clock


@dataclass
class Replica:
    """One replica's part in the election."""

    connection: api.Api
    election: Election
    task: "asyncio.Task[None] | None" = None

    def begin(self) -> None:
        self.task = asyncio.create_task(self.election.follow())

    async def end(self) -> None:
        """Like the end of a process: nothing more is done."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    @property
    def leads(self) -> bool:
        return self.election.leads.is_set()


def election(server: api.Api, fence: Fence, me: str = "") -> Election:
    return Election(
        api=server, fence=fence, namespace="demo", name="atoll-operator", times=TIMES, me=me
    )


@asynccontextmanager
async def replicas(folder: Path) -> AsyncIterator[tuple[ApiServer, Replica, Replica]]:
    """Two that are connected and do nothing yet."""
    server, fences = ApiServer(kinds={LEASES: "Lease"}), (Fence(times=TIMES), Fence(times=TIMES))
    async with (
        connected(server, folder, fences[0]) as first,
        connected(server, folder, fences[1]) as second,
    ):
        a, b = (
            Replica(each, election(each, fence, me))
            for each, fence, me in zip((first, second), fences, "ab", strict=True)
        )
        try:
            yield server, a, b
        finally:
            await a.end()
            await b.end()


async def leads_before(a: Replica, b: Replica) -> None:
    """The first one leads, and the other one knows it."""
    a.begin()
    await until(lambda: a.leads)
    b.begin()
    await until(lambda: b.election.holder == "a")


async def looked(server: ApiServer) -> None:
    """Each replica that lives has read the Lease or written it since, or has tried to."""

    def count() -> int:
        return server.count("LIST", OWN) + server.count("PATCH", OWN)

    before = count()
    await until(lambda: count() > before + LOOKS)


def spec(server: ApiServer) -> dict[str, Any]:
    (found,) = server.items[LEASES]
    return dict(found["spec"])


async def test_of_two_that_begin_at_once_one_leads_for_good(tmp_path: Path, clock: Clock) -> None:
    async with replicas(tmp_path) as (server, a, b):
        a.begin()
        b.begin()
        await until(lambda: a.leads or b.leads)
        leader, other = (a, b) if a.leads else (b, a)
        renewed = spec(server)["renewTime"]
        for _ in range(5):  # longer than a Lease
            await looked(server)
            clock.now += TIMES.renew_seconds_max / 2
        await looked(server)
        assert (leader.leads, other.leads) == (True, False)
        assert spec(server)["holderIdentity"] == leader.election.me == other.election.holder
        assert spec(server)["leaseTransitions"] == 0
        assert spec(server)["renewTime"] > renewed
        assert spec(server)["acquireTime"] <= renewed


async def test_a_leader_that_ends_in_good_order_is_followed_at_once_and_a_dead_one_after_its_lease(
    tmp_path: Path, clock: Clock
) -> None:
    async with replicas(tmp_path) as (server, a, b):
        await leads_before(a, b)
        await a.end()
        await a.election.release()
        assert spec(server)["holderIdentity"] == ""
        assert not a.leads
        looks = server.count("LIST", OWN)
        await until(lambda: b.leads)
        assert server.count("LIST", OWN) <= looks + 2  # at its next look, not after a Lease
        await a.election.release()  # it has none: nothing is written
        assert spec(server)["holderIdentity"] == "b"
        a.begin()
        await until(lambda: a.election.holder == "b")
        await b.end()
        last = spec(server)
        await looked(server)  # a has seen the last renewal
        clock.now += TIMES.lease_seconds - 1
        await looked(server)
        assert not a.leads
        clock.now += 1
        await until(lambda: a.leads)
        assert spec(server)["leaseTransitions"] == last["leaseTransitions"] + 1


async def test_while_the_api_server_is_away_nobody_leads(tmp_path: Path, clock: Clock) -> None:
    async with replicas(tmp_path) as (server, a, b):
        await leads_before(a, b)
        server.refusals |= {OWN: AWAY, path("Lease", "demo"): AWAY}
        await looked(server)
        assert a.leads
        clock.now += TIMES.renew_seconds_max
        await until(lambda: not a.leads)
        assert a.election.answering_since is None
        with pytest.raises(NotLeaderError):
            a.election.fence.check()
        clock.now += 2.0 * TIMES.lease_seconds
        await looked(server)
        assert not a.leads
        assert not b.leads
        server.refusals.clear()
        await until(lambda: a.leads or b.leads)
        assert (a if a.leads else b).election.answering_since is not None


async def test_one_that_was_stopped_writes_nothing_afterwards(tmp_path: Path, clock: Clock) -> None:
    """Stopped like SIGSTOP does: nothing of it runs, so nothing tells it but its clock."""
    async with replicas(tmp_path) as (server, a, b):
        a.begin()
        await until(lambda: a.leads)
        await a.connection.apply(CHILD)
        await a.end()
        b.begin()
        await until(lambda: b.election.holder == "a")
        clock.now += TIMES.lease_seconds
        await until(lambda: b.leads)
        writes, lasts = len(server.requests), server.count("PATCH", CHILDREN)
        assert a.leads  # as far as it knows
        for write in (
            a.connection.apply(CHILD),
            a.connection.delete(CHILDREN, "uid"),
            a.connection.apply_status("demo", "tiny", "uid", {}),
            a.connection.apply_event(CHILD),
            a.connection.dry_run(CHILD),
            a.connection.dry_run_pod(POD),
            a.connection.create(CHILD),
            a.connection.mark("demo", "tiny-us-east-0", "uid", {}),
            Syncers(fence=a.election.fence).set_owner("127.0.0.1:1", "us-east-0", "uid", 1),
        ):
            with pytest.raises(NotLeaderError, match="was not renewed for"):
                await write
        assert server.count("PATCH", CHILDREN) == lasts
        assert not [each for each in server.requests[writes:] if each[0] in ("DELETE", "POST")]
        a.begin()
        await until(lambda: not a.leads)
        with pytest.raises(NotLeaderError, match="does not lead"):
            await a.connection.apply(CHILD)
        assert spec(server)["holderIdentity"] == "b"
        assert await a.connection.get(CHILDREN) is not None  # it may read


async def test_a_lease_that_is_deleted_or_has_another_version_is_kept(tmp_path: Path) -> None:
    async with replicas(tmp_path) as (server, a, b):
        await leads_before(a, b)
        server.put(LEASES, "atoll-operator", spec={**spec(server), "renewTime": "lost"})
        await until(lambda: spec(server)["renewTime"] != "lost")
        assert spec(server)["leaseTransitions"] == 0
        server.drop(LEASES, "atoll-operator")
        await until(lambda: bool(server.items[LEASES]))
        assert spec(server)["holderIdentity"] == "a"
        assert (a.leads, b.leads) == (True, False)


class Shard(SyncerServicer):
    """Notes what it is told with each question."""

    def __init__(self) -> None:
        self.told: list[pb.StatusRequest] = []

    async def Status(  # noqa: N802  as in the protocol
        self, request: pb.StatusRequest, context: object
    ) -> pb.StatusReply:
        self.told.append(request)
        return pb.StatusReply(epoch=7)


async def test_a_replica_without_a_lease_asks_shards_and_tells_nothing(clock: Clock) -> None:
    """An intent, such as to suspend, has no number: only the leader's may arrive."""
    shard, server, fence = Shard(), grpc.aio.server(), Fence(times=TIMES)  # type: ignore[abstract]
    add_SyncerServicer_to_server(shard, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    syncers, word = Syncers(fence=fence), pb.StatusRequest(intent=pb.INTENT_SUSPEND, why="w")
    for renewed_at, told in (
        (clock.now, word),
        (clock.now - TIMES.renew_seconds_max, pb.StatusRequest()),
    ):
        fence.renewed_at = renewed_at
        (reply,) = await syncers.status([address], word)
        assert reply is not None
        assert reply.epoch == 7
        assert shard.told[-1] == told
    await syncers.close()
    await server.stop(None)


def test_a_write_has_no_more_time_than_until_another_may_lead(clock: Clock) -> None:
    fence = Fence(times=TIMES)
    fence.renewed_at = clock.now
    clock.now += 0.5
    assert fence.check() == TIMES.lease_seconds - 0.5
    clock.now += TIMES.renew_seconds_max - 0.5
    with pytest.raises(NotLeaderError, match=r"was not renewed for 100\.0 s"):
        fence.check()


def test_a_leaders_time_begins_when_its_renewal_was_sent(clock: Clock) -> None:
    sent: list[float] = []

    class Slow:
        """An API server that needs half a second for each write."""

        async def call(self, method: str, where: str, **more: Any) -> dict[str, Any]:
            if method == "get":
                raise api.ObjectNotFoundError(404, "")
            sent.append(clock.now)
            clock.now += 0.5
            body: dict[str, Any] = more["body"]
            return body | {"metadata": {"resourceVersion": str(len(sent))}}

    fence = Fence(times=TIMES)
    one = election(cast("api.Api", Slow()), fence)
    for _ in range(2):  # the Lease is made, then renewed
        asyncio.run(one._look())
        assert fence.renewed_at == sent[-1]
        assert fence.check() == TIMES.lease_seconds - 0.5
