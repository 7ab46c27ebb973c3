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
from prometheus_client import CollectorRegistry, Gauge

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges import api
from atoll_operator.kube.edges.api import lease_path
from atoll_operator.kube.edges.connection import connect
from atoll_operator.kube.edges.fence import Fence, NotLeaderError
from atoll_operator.kube.edges.lease import Election
from atoll_operator.kube.edges.limiter import Limiter
from atoll_operator.kube.edges.syncers import Syncers
from atoll_operator.kube.election import Times
from atoll_protos.v1.atoll_pb2_grpc import SyncerServicer, add_SyncerServicer_to_server
from unit.kube.api_server import ApiServer, serving, until

LEASES = "/apis/coordination.k8s.io/v1/leases"
OWN = lease_path("demo", "atoll-operator")
CHILD = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c", "namespace": "demo"}}
POD = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "demo"}}
CHILDREN = api.path("ConfigMap", "demo", "c")
TIMES = Times(lease_seconds=200, renew_seconds_max=100.0, retry_seconds=0.1)
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
    for module in ("fence", "lease"):
        monkeypatch.setattr(f"atoll_operator.kube.edges.{module}.time", clock)
    return clock


@dataclass
class Replica:
    """One replica's part in the election."""

    connection: api.Api
    election: Election
    fence: Fence
    gauge: Gauge
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

    @property
    def shown(self) -> float:
        """The metric."""
        (metric,) = self.gauge.collect()
        return metric.samples[0].value


@asynccontextmanager
async def replicas(folder: Path) -> AsyncIterator[tuple[ApiServer, Replica, Replica]]:
    """Two that are connected and do nothing yet."""
    server = ApiServer(kinds={LEASES: "Lease"})
    found = []
    async with serving(server, folder) as config:
        for me in ("a", "b"):
            fence, gauge = Fence(times=TIMES), Gauge("leader", "", registry=CollectorRegistry())
            limiter = Limiter(per_second=1e6, burst=1)
            connection = await connect(limiter, str(config), fence=fence)
            election = Election(
                api=connection, fence=fence, namespace="demo", name="atoll-operator",
                gauge=gauge, times=TIMES, me=me,
            )  # fmt: skip
            found.append(Replica(connection, election, fence, gauge))
        try:
            yield server, found[0], found[1]
        finally:
            for each in found:
                await each.end()
                await each.connection.close()


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


def test_of_two_that_begin_at_once_one_leads_and_goes_on_leading(
    tmp_path: Path, clock: Clock
) -> None:
    async def scenario() -> None:
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
            assert (leader.shown, other.shown) == (1.0, 0.0)
            assert spec(server)["holderIdentity"] == leader.election.me == other.election.holder
            assert spec(server)["leaseTransitions"] == 0
            assert spec(server)["renewTime"] > renewed
            assert spec(server)["acquireTime"] <= renewed

    asyncio.run(scenario())


def test_a_leader_that_ends_in_good_order_is_followed_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_leader_that_dies_is_followed_when_its_lease_is_over(
    tmp_path: Path, clock: Clock
) -> None:
    async def scenario() -> None:
        async with replicas(tmp_path) as (server, a, b):
            await leads_before(a, b)
            await a.end()
            last = spec(server)
            await looked(server)  # b has seen the last renewal
            clock.now += TIMES.lease_seconds - 1
            await looked(server)
            assert not b.leads
            clock.now += 1
            await until(lambda: b.leads)
            assert spec(server)["leaseTransitions"] == last["leaseTransitions"] + 1
            assert b.election.seen is not None

    asyncio.run(scenario())


def test_an_api_server_that_is_away_makes_a_standby_of_the_leader_and_no_new_one(
    tmp_path: Path, clock: Clock
) -> None:
    async def scenario() -> None:
        async with replicas(tmp_path) as (server, a, b):
            a.begin()
            await until(lambda: a.leads)
            b.begin()
            await until(lambda: b.election.holder == "a")
            server.refusals |= {OWN: AWAY, lease_path("demo"): AWAY}
            await looked(server)
            assert a.leads
            clock.now += TIMES.renew_seconds_max
            await until(lambda: not a.leads)
            assert a.shown == 0.0
            assert a.election.answering_since is None
            with pytest.raises(NotLeaderError):
                a.fence.check()
            clock.now += 2.0 * TIMES.lease_seconds
            await looked(server)
            assert not a.leads
            assert not b.leads
            server.refusals.clear()
            await until(lambda: a.leads or b.leads)
            assert (a if a.leads else b).election.answering_since is not None

    asyncio.run(scenario())


def test_one_that_was_stopped_writes_nothing_after_its_lease_was_taken(
    tmp_path: Path, clock: Clock
) -> None:
    """Stopped like SIGSTOP does: nothing of it runs, so nothing tells it but its clock."""

    async def scenario() -> None:
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
                Syncers(fence=a.fence).set_owner("127.0.0.1:1", "us-east-0", "uid", 1),
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

    asyncio.run(scenario())


def test_a_renewal_whose_answer_was_lost_is_no_loss_of_the_lease(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicas(tmp_path) as (server, a, _):
            a.begin()
            await until(lambda: a.leads)
            server.put(LEASES, "atoll-operator", spec={**spec(server), "renewTime": "lost"})
            await until(lambda: spec(server)["renewTime"] != "lost")
            assert a.leads
            assert spec(server)["leaseTransitions"] == 0

    asyncio.run(scenario())


def test_a_lease_that_somebody_deletes_is_made_again_by_its_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicas(tmp_path) as (server, a, b):
            a.begin()
            await until(lambda: a.leads)
            b.begin()
            await until(lambda: b.election.holder == "a")
            server.drop(LEASES, "atoll-operator")
            await until(lambda: bool(server.items[LEASES]))
            assert spec(server)["holderIdentity"] == "a"
            assert a.leads
            assert not b.leads

    asyncio.run(scenario())


class Shard(SyncerServicer):
    """Notes what it is told with each question."""

    def __init__(self) -> None:
        self.told: list[pb.StatusRequest] = []

    async def Status(  # noqa: N802  as in the protocol
        self, request: pb.StatusRequest, context: object
    ) -> pb.StatusReply:
        self.told.append(request)
        return pb.StatusReply(epoch=7)


def test_a_replica_without_a_lease_asks_the_shards_and_tells_them_nothing(clock: Clock) -> None:
    """An intent, such as to suspend, has no number: only the leader's may arrive."""

    async def scenario() -> None:
        shard, server, fence = Shard(), grpc.aio.server(), Fence(times=TIMES)
        add_SyncerServicer_to_server(shard, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        syncers, word = Syncers(fence=fence), pb.StatusRequest(intent=pb.INTENT_SUSPEND, why="w")
        for renewed_at, told in (
            (clock.now, word),
            (clock.now - TIMES.renew_seconds_max, pb.StatusRequest()),
        ):
            fence.renewed(renewed_at)
            (reply,) = await syncers.status([address], word)
            assert reply is not None
            assert reply.epoch == 7
            assert shard.told[-1] == told
        await syncers.close()
        await server.stop(None)

    asyncio.run(scenario())


def test_a_write_has_no_more_time_than_until_another_may_lead(clock: Clock) -> None:
    fence = Fence(times=TIMES)
    fence.renewed(clock.now)
    clock.now += 0.5
    assert fence.check() == TIMES.lease_seconds - 0.5
    clock.now += TIMES.renew_seconds_max - 0.5
    with pytest.raises(NotLeaderError, match=r"was not renewed for 100\.0 s"):
        fence.check()


def test_a_leaders_time_begins_when_its_renewal_was_sent_and_not_when_it_was_answered(
    clock: Clock,
) -> None:
    sent: list[float] = []

    class Slow:
        """An API server that needs half a second for each write."""

        async def lease(self, method: str, where: str, **more: Any) -> dict[str, Any] | None:
            if method == "get":
                return None
            sent.append(clock.now)
            clock.now += 0.5
            body: dict[str, Any] = more["body"]
            return body | {"metadata": {"resourceVersion": str(len(sent))}}

    fence, slow = Fence(times=TIMES), cast("api.Api", Slow())
    gauge = Gauge("leader", "", registry=CollectorRegistry())
    election = Election(
        api=slow, fence=fence, namespace="demo", name="atoll-operator", gauge=gauge, times=TIMES,
    )  # fmt: skip
    for _ in range(2):  # the Lease is made, then renewed
        asyncio.run(election._look())
        assert fence.renewed_at == election.renewed_at == sent[-1]
        assert fence.check() == TIMES.lease_seconds - 0.5
