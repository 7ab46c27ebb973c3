"""Several served namespaces: one that cannot be seen, or is gone, holds up no other."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import KINDS, LEASES, NODES, ApiError, path
from atoll_operator.kube.edges.namespaces import GONE_SECONDS, LEFT_OUT, SERVED, Namespaces
from atoll_operator.kube.observed.cache import Cache, Key, Sight
from unit.kube.api_server import ApiServer, until
from unit.kube.test_serve import probe, replicas, tiny
from unit.kube.world import World

PODS = path("Pod", "other")


def paths_of(namespace: str) -> dict[str, str]:
    """Kinds by path of what is followed in a namespace."""
    kinds = {path(kind, namespace): kind for kind in KINDS}
    return {**kinds, path(KIND, namespace): KIND, f"/api/v1/namespaces/{namespace}/events": "Event"}


class Api:
    """Namespaces as they are, and the Events that were written."""

    def __init__(self) -> None:
        self.found: Mapping[str, Any] | None = None
        self.error: ApiError | None = None
        self.events: list[str] = []

    async def get(self, where: str) -> Mapping[str, Any] | None:
        assert where == "/api/v1/namespaces/other"
        if self.error:
            raise self.error
        return self.found

    async def apply_event(self, event: Mapping[str, Any]) -> None:
        assert event["metadata"]["namespace"] == event["involvedObject"]["namespace"] == "atoll"
        self.events.append(event["reason"])


class Scene:
    """Two namespaces, of which one has a job and a watch that is refused since 0."""

    def __init__(self) -> None:
        self.api, self.cache, self.fed = Api(), Cache(), cast("list[Key]", [])
        for namespace in ("demo", "other"):
            sight = Sight(namespace=namespace, tried_at=0.0, listed=True)
            self.cache.sights[path("Pod", namespace)] = sight
        metadata = {"name": "job", "namespace": "other", "uid": "u", "resourceVersion": "1"}
        self.cache.seen(KIND, {"kind": KIND, "metadata": metadata})
        self.cache.sights[PODS].fails("403: forbidden", 0.0)
        self.part = Namespaces(
            api=cast("Any", self.api), cache=self.cache, namespaces=["demo", "other"],
            lease=("atoll", "operator"), feed=self.fed.append,
        )  # fmt: skip

    def look(self, now: float) -> set[str]:
        for each in self.part.namespaces:
            asyncio.run(self.part.look(each, now))
        return self.cache.left_out


def test_a_watch_that_is_refused_is_a_problem_of_its_namespace_alone() -> None:
    cache = Scene().cache
    assert cache.problem("demo") == ""
    assert cache.problem("other") == f"{PODS} cannot be watched: 403: forbidden"
    cache.sights[path("Pod", "")] = Sight(tried_at=0.0)
    assert "not listed" in cache.problem("demo")  # one of the whole cluster is everybody's


@pytest.mark.parametrize("found", [None, {"status": {"phase": "Terminating"}}])
def test_a_namespace_that_is_gone_for_a_minute_is_left_out_and_told_once(found: Any) -> None:
    scene = Scene()
    scene.api.found = found
    assert scene.look(GONE_SECONDS - 1) == set()
    assert scene.look(GONE_SECONDS) == {"other"}
    assert scene.cache.job(("other", "job")) is None
    assert scene.fed == [("other", "job")]  # a pass forgets it
    scene.look(GONE_SECONDS + 1)
    assert scene.api.events == [LEFT_OUT]
    scene.cache.sights[PODS].works(99.0)
    assert scene.look(100.0) == set()
    assert scene.api.events == [LEFT_OUT, SERVED]


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"status": {"phase": "Active"}}, None),
        (None, ApiError(403, "no")),
        (None, ApiError(503, "")),
    ],
)
def test_a_namespace_whose_rights_alone_are_lost_is_not_left_out(found: Any, error: Any) -> None:
    scene = Scene()
    scene.api.found, scene.api.error = found, error
    assert scene.look(10 * GONE_SECONDS) == set()
    assert not scene.api.events


def test_a_job_is_judged_while_another_namespace_cannot_be_seen() -> None:
    world = World()
    sight = Sight(namespace="other", tried_at=0.0, listed=True)
    world.server.cache.sights[PODS] = sight
    sight.fails("403: forbidden", 0.0)
    assert "apply StatefulSet tiny-us-east" in world.run()


def test_a_job_of_a_namespace_that_is_left_out_is_forgotten() -> None:
    world = World()
    world.run()
    world.server.job = None
    sight = Sight(namespace="demo", tried_at=0.0, listed=True)
    world.server.cache.sights["pods"] = sight
    sight.fails("403: forbidden", 0.0)
    world.run()
    assert world.reconciler.memories  # it may be there
    world.server.cache.left_out.add("demo")
    world.run()
    assert not world.reconciler.memories
    assert world.again is None


async def test_the_operator_serves_one_namespace_while_another_refuses_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real process: its jobs' watch, too, is one for each namespace."""
    monkeypatch.setenv("ATOLL_OPERATOR_NAMESPACES", "demo,other")
    demo, other = paths_of("demo"), paths_of("other")
    server = ApiServer(kinds={**demo, **other, NODES: "Node", LEASES: "Lease"})
    async with replicas(server, tmp_path) as (one,):
        await until(lambda: all(server.watchers[each] for each in (*demo, *other)))
        server.refusals |= dict.fromkeys(other, (403, {}))
        for where in other:
            server.end_watches(where)
        await until(lambda: server.count("LIST", path("Pod", "other")) > 1)
        status, body = await probe(f"{one.url}/readyz")
        assert status == 200, body  # within the minute
        server.put(path(KIND, "demo"), "tiny", **tiny())
        made = path("StatefulSet", "demo", "tiny-us-east")
        await until(lambda: server.count("PATCH", made) > 0)
        assert server.watchers[path(KIND, "demo")]
