"""A term: fresh lists before its first pass, and nothing of it left when another replica leads."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube import serve
from atoll_operator.kube.edges.api import ApiError
from atoll_operator.kube.edges.election import Fence, NotLeaderError
from atoll_operator.kube.edges.lease import Election
from atoll_operator.kube.edges.queue import Queue
from atoll_operator.kube.metrics import Metrics
from atoll_operator.kube.observed.cache import Cache, Key
from atoll_operator.kube.reconcile import NOT_LEADER_SECONDS, Reconciler
from atoll_operator.kube.serve import Term, Terms
from unit.kube.api_server import until

KEY = ("demo", "tiny")
Pass = Callable[[Key], Awaitable[float | None]]


def wins(election: Election) -> None:
    election.stands_by.clear()
    election.leads.set()


def loses(election: Election) -> None:
    election.leads.clear()
    election.stands_by.set()


def a_part() -> Election:
    nothing: Any = None
    return Election(api=nothing, fence=Fence(), namespace="", name="")


@dataclass
class Collection:
    """A collection that is followed; notes what happens in one common list."""

    said: list[str]
    name: str = "list"
    fails: int = 0
    is_broken: bool = False
    listed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.listed.set()

    async def list_now(self) -> None:
        self.fails -= 1
        if self.fails >= 0:
            raise ApiError(503, "away")
        self.said.append(self.name)


@dataclass
class Closed:
    """Polls."""

    said: list[str]
    name: str

    async def close(self) -> None:
        self.said.append(self.name)


@dataclass
class World:
    said: list[str] = field(default_factory=list)
    election: Election = field(default_factory=a_part)
    cache: Cache = field(default_factory=Cache)
    metrics: Metrics = field(default_factory=Metrics)
    terms: int = 0

    def __post_init__(self) -> None:
        metadata = {"name": KEY[1], "namespace": KEY[0], "uid": "u", "resourceVersion": "1"}
        self.cache.seen(KIND, {"kind": KIND, "metadata": metadata, "spec": {}})

    def begin(self, reconcile: Pass) -> Terms:
        def one() -> Term:
            self.terms += 1
            passes: Any = self
            return Term(
                queue=Queue(reconcile=reconcile), passes=passes,
                polls=cast("Any", Closed(self.said, "polls")),
            )  # fmt: skip

        return Terms(election=self.election, begin=one)

    @property
    def observer(self) -> "World":
        return self


async def test_a_term_lists_all_before_its_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the former leader has just done may not have come by the watches yet."""
    monkeypatch.setattr(serve, "LIST_AGAIN_SECONDS", 0.01)
    world = World()

    async def reconcile(key: Key) -> float | None:
        world.said.append("pass")
        return None

    found = [
        Collection(world.said, "jobs", fails=2),
        Collection(world.said, "pods"),
        Collection(world.said, "broken", is_broken=True),
    ]
    terms = world.begin(reconcile)
    task = asyncio.create_task(terms.run(cast("Any", found), cast("Any", found)))
    terms.ask(KEY)  # a standby has no queue
    assert world.said == []
    wins(world.election)
    await until(lambda: "pass" in world.said)
    assert world.said == ["pods", "jobs", "pass"]  # of all jobs, without an event
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_lists_that_fail_for_ever_only_delay_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LIST_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(serve, "FRESH_SECONDS_MAX", 0.5)
    found = Collection([], fails=1_000_000)
    asyncio.run(serve.fresh(cast("Any", found)))
    assert 0 < found.fails < 1_000_000


async def test_when_another_leads_the_passes_that_run_have_ended_before_anything_else() -> None:
    world = World()

    async def reconcile(key: Key) -> float | None:
        world.said.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            world.said.append("ended")
        return None

    terms = world.begin(reconcile)
    task = asyncio.create_task(terms.run([], []))
    wins(world.election)
    await until(lambda: world.said == ["begun"])
    world.metrics.held.set(3)
    loses(world.election)
    await until(lambda: terms.now is None)
    assert world.said == ["begun", "ended", "polls"]
    assert world.metrics.registry.get_sample_value("atoll_operator_jobs_held") == 0
    wins(world.election)
    await until(lambda: world.said[3:] == ["begun"])  # from nothing, with all jobs
    assert world.terms == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert world.said[4:] == ["ended", "polls"]


async def test_a_pass_whose_write_is_refused_for_want_of_a_lease_is_no_failure() -> None:
    class Observer:
        cache = Cache()

        async def look(self, key: Key, memories: object) -> None:
            raise NotLeaderError("not renewed")

    metrics = Metrics()
    nothing: Any = None
    passes = Reconciler(
        settings=nothing, metrics=metrics, observer=cast("Any", Observer()),
        applier=nothing, writer=nothing,
    )  # fmt: skip
    assert await passes.reconcile(KEY) == NOT_LEADER_SECONDS
    assert metrics.registry.get_sample_value("atoll_operator_pass_failures_total") == 0


def test_an_edit_lifts_what_failed_in_the_term_that_runs_and_a_standby_forgets_it() -> None:
    queue = Queue(reconcile=cast(Any, None), failures={KEY: 3}, blocked={KEY: 9e9})
    terms = Terms(election=a_part(), begin=cast(Any, None))
    terms.edited(KEY)
    terms.ask(KEY)
    assert (queue.failures, queue.due) == ({KEY: 3}, {})
    terms.now = cast(Any, SimpleNamespace(queue=queue))
    terms.edited(KEY)
    assert (queue.failures, queue.blocked) == ({}, {})
