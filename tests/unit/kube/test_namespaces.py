"""Several served namespaces: one that cannot be seen, or is gone, holds up no other."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import KINDS, LEASES, NODES, ApiError, path
from atoll_operator.kube.edges.watches import GONE_SECONDS, Nodes, Reflector, sources
from atoll_operator.kube.observed.cache import Cache, Key, Sight
from atoll_protos.names import Label
from unit.kube.api_server import ApiServer, until
from unit.kube.test_serve import probe, replicas, tiny
from unit.kube.world import World

PODS = path("Pod", "other")


def paths_of(namespace: str) -> dict[str, str]:
    """Kinds by path of what is followed in a namespace."""
    kinds = {path(kind, namespace): kind for kind in KINDS}
    return {**kinds, path(KIND, namespace): KIND, f"/api/v1/namespaces/{namespace}/events": "Event"}


class Api:
    """Refuses everything but to say what a namespace is."""

    def __init__(self, found: Mapping[str, Any] | None, error: ApiError | None = None) -> None:
        self.found, self.error, self.lists = found, error, 0

    async def get(self, where: str) -> Mapping[str, Any] | None:
        assert where == "/api/v1/namespaces/other"
        if self.error:
            raise self.error
        return self.found

    async def pages(self, *_: Any) -> AsyncIterator[Any]:
        self.lists += 1
        if self.lists == 3:
            raise asyncio.CancelledError
        raise ApiError(403, "forbidden")
        yield


async def refused(api: Api, cache: Cache, fed: list[Key], broken_seconds: float) -> None:
    """Follow the pods of a namespace, which have been out of sight for so long."""
    followed = sources(cache, Nodes(region_label=""), ["other"], fed.append)
    (pods,) = (each for each in followed if each.path == PODS)
    reflector = Reflector(api=cast("Any", api), source=pods)
    reflector.sight.fails("403: forbidden", time.monotonic() - broken_seconds)
    metadata: Any = {"name": "p", "namespace": "other", "uid": "u", "resourceVersion": "1"}
    metadata |= {"labels": {Label.JOB: "job"}}
    cache.seen("Pod", {"kind": "Pod", "metadata": metadata})
    with pytest.raises(asyncio.CancelledError):
        await reflector.follow()


def test_a_watch_that_is_refused_is_a_problem_of_its_namespace_alone() -> None:
    cache = Cache()
    for namespace in ("demo", "other"):
        cache.sights[path("Pod", namespace)] = Sight(namespace=namespace, tried_at=0.0, listed=True)
    cache.sights[PODS].fails("403: forbidden", 0.0)
    assert cache.problem("demo") == ""
    assert cache.problem("other") == f"{PODS} cannot be watched: 403: forbidden"
    cache.sights[path("Pod", "")] = Sight(tried_at=0.0)
    assert "not listed" in cache.problem("demo")  # one of the whole cluster is everybody's


@pytest.mark.parametrize("found", [None, {"status": {"phase": "Terminating"}}])
@pytest.mark.usefixtures("slept")
async def test_a_namespace_that_is_gone_for_a_minute_is_empty(found: Any) -> None:
    cache, fed = Cache(), cast("list[Key]", [])
    await refused(Api(found), cache, fed, GONE_SECONDS - 1)
    assert not cache.sights[PODS].gone
    await refused(Api(found), cache, fed, GONE_SECONDS)
    assert cache.sights[PODS].gone
    assert fed == [("other", "job")]  # a pass forgets it
    assert not cache.children(("other", "job"))
    cache.sights[PODS].works(99.0)
    assert not cache.sights[PODS].gone


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"status": {"phase": "Active"}}, None),
        (None, ApiError(403, "no")),
        (None, ApiError(503, "")),
    ],
)
@pytest.mark.usefixtures("slept")
async def test_a_namespace_whose_rights_alone_are_lost_is_not_gone(found: Any, error: Any) -> None:
    cache = Cache()
    await refused(Api(found, error), cache, [], 10 * GONE_SECONDS)
    assert not cache.sights[PODS].gone


def test_a_job_of_a_namespace_that_is_gone_is_forgotten() -> None:
    world = World()
    world.run()
    world.server.job = None
    sight = Sight(namespace="demo", tried_at=0.0, listed=True)
    world.server.cache.sights = {"pods": sight}
    sight.fails("403: forbidden", 0.0)
    world.run()
    assert world.reconciler.memories  # it may be there
    sight.gone = True
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
