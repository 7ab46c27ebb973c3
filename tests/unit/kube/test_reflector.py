"""A collection is followed whatever happens to its watch, and its sight tells how it fares."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.kube.edges import api, watches
from atoll_operator.kube.edges.api import Limiter
from atoll_operator.kube.edges.watches import Reflector, Source
from atoll_operator.kube.observed.cache import Sight
from atoll_operator.kube.serve import connect
from unit.kube.api_server import POD_PATH, ApiServer, connected, running, serving, until


class World:
    """One reflector of pods; what it was told."""

    def __init__(self, server: ApiServer, connection: api.Api, silent_seconds_max: float) -> None:
        self.server = server
        self.known: dict[str, Any] = {}
        self.lists: list[list[str]] = []
        self.resumes = 0
        self.sight = Sight(tried_at=time.monotonic())
        source = Source(
            path=POD_PATH, sight=self.sight, feed=lambda _: None,
            query=[("labelSelector", "of")], listed=self._listed,
            keep=lambda raw: (raw["metadata"]["name"], raw.get("said")), changed=self._changed,
            resumed=self._resumed, silent_seconds_max=lambda: silent_seconds_max,
        )  # fmt: skip
        self.reflector = Reflector(api=connection, source=source)

    def _listed(self, items: list[Any], version: int) -> tuple[()]:
        self.known = dict(items)
        self.lists.append(list(self.known))
        assert version <= self.server.version
        return ()

    def _changed(self, event: str, kept: tuple[str, Any]) -> tuple[()]:
        if event == "DELETED":
            del self.known[kept[0]]
        else:
            self.known[kept[0]] = kept[1]
        return ()

    def _resumed(self) -> None:
        self.resumes += 1

    async def watched(self) -> None:
        await until(lambda: bool(self.server.watchers[POD_PATH]) and self.sight.listed)

    async def refused(self, status: int, **headers: str) -> None:
        """The API server ends the watch and answers with this from now on."""
        self.server.refusals[POD_PATH] = (status, headers)
        self.server.end_watches(POD_PATH)
        await until(lambda: self.sight.broken_at is not None)

    async def works_again(self) -> None:
        self.server.refusals.clear()
        await until(lambda: self.sight.broken_at is None)


@asynccontextmanager
async def follow(folder: Path, silent_seconds_max: float = 60.0) -> AsyncIterator[World]:
    server = ApiServer(kinds={POD_PATH: "Pod"})
    for number in range(5):
        server.put(POD_PATH, f"p{number}", said=number)
    async with connected(server, folder) as connection:
        world = World(server, connection, silent_seconds_max)
        async with running(world.reflector.follow()):
            await world.watched()
            yield world


Following = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Following:
    monkeypatch.setattr(watches, "RETRY_SECONDS", (0.01, 0.05))
    return partial(follow, tmp_path)


async def test_a_list_is_read_in_pages_and_only_objects_with_the_label(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "PAGE_OBJECTS", 2)
    async with following() as world:
        assert world.lists == [["p0", "p1", "p2", "p3", "p4"]]
        lists = [each for each in world.server.queries if "watch" not in each]
        assert [each.get("continue") for each in lists] == [None, "2", "4"]
        assert all(each["limit"] == "2" for each in lists)
        assert all(each["labelSelector"] == "of" for each in world.server.queries)


async def test_changes_come_by_watch_and_its_end_needs_no_list(following: Following) -> None:
    async with following() as world:
        server = world.server
        server.put(POD_PATH, "p1", said="new")
        server.drop(POD_PATH, "p2")
        await until(lambda: world.known.get("p1") == "new" and "p2" not in world.known)
        server.end_watches(POD_PATH)
        await until(lambda: server.count("WATCH", POD_PATH) == 2)
        assert server.queries[-1]["resourceVersion"] == str(server.version)
        await world.watched()
        server.put(POD_PATH, "p9", said="later")
        await until(lambda: "p9" in world.known)
        assert server.count("LIST", POD_PATH) == 1
        assert world.sight.broken_at is None


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_server_that_is_unwell_needs_no_list(status: int, following: Following) -> None:
    async with following() as world:
        server = world.server
        await world.refused(status)
        await until(lambda: server.count("WATCH", POD_PATH) > 3)
        assert world.sight.problem == f"{status}: no"
        await world.works_again()
        assert world.resumes == 1
        assert server.count("LIST", POD_PATH) == 1


@pytest.mark.parametrize("status", [403, 404, 410])
async def test_a_refused_watch_begins_with_a_list(status: int, following: Following) -> None:
    async with following() as world:
        await world.refused(status)
        await until(lambda: world.server.count("LIST", POD_PATH) > 3)
        assert world.sight.broken_at is not None
        world.server.drop(POD_PATH, "p2", told=False)
        await world.works_again()
        assert "p2" not in world.known


async def test_a_version_that_is_too_old_is_answered_by_a_list(following: Following) -> None:
    async with following() as world:
        world.server.tell(POD_PATH, "ERROR", {"code": 410, "message": "too old resource version"})
        await until(lambda: len(world.lists) == 2)


async def test_a_connection_that_is_silent_beyond_its_bookmarks_is_left(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, ahead = asyncio.get_running_loop(), [0.0]
    whole = loop.time
    monkeypatch.setattr(loop, "time", lambda: whole() + ahead[0])
    async with following(silent_seconds_max=100.0) as world:
        server = world.server
        for _ in range(2):  # bookmarks keep it alive for longer than its limit, and are no change
            ahead[0] += 60.0
            server.version += 1
            bookmark = {"metadata": {"name": "no", "resourceVersion": str(server.version)}}
            server.tell(POD_PATH, "BOOKMARK", bookmark)
            await until(lambda: world.reflector.version == str(server.version))
        assert server.count("WATCH", POD_PATH) == 1
        assert len(world.known) == 5
        ahead[0] += 101.0
        await until(lambda: server.count("WATCH", POD_PATH) > 1)
        assert server.count("LIST", POD_PATH) == 1


async def test_a_kind_of_which_nothing_is_said_is_watched_again(following: Following) -> None:
    async with following(silent_seconds_max=0.2) as world:
        await until(lambda: world.server.count("WATCH", POD_PATH) > 2)  # no bookmark ever came
        assert world.sight.broken_at is None
        assert world.server.count("LIST", POD_PATH) == 1
        assert world.resumes > 0  # events of the gap may come late


async def test_a_watch_that_the_api_server_does_not_take_is_a_failure(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "BEGIN_SECONDS_MAX", 0.2)  # long before its silence is
    async with following() as world:
        world.server.silent = True
        world.server.end_watches(POD_PATH)
        await until(lambda: world.sight.broken_at is not None)
        world.server.silent = False
        await world.works_again()


async def test_retry_after_is_waited_for(following: Following, slept: list[float]) -> None:
    async with following() as world:
        await world.refused(429, **{"Retry-After": "3"})
        await until(lambda: 3.0 in slept)


async def test_a_server_away_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "RETRY_SECONDS", (0.01, 0.05))
    server = ApiServer()
    async with serving(server, tmp_path) as config:
        connection = await connect(Limiter(per_second=1e6, burst=1), str(config))
        world = World(server, connection, 60.0)
    async with running(world.reflector.follow()):
        await until(lambda: world.reflector.failures > 3)
        assert world.sight.broken_at is not None
        assert not world.sight.listed
        assert world.sight.tried_at > world.sight.broken_at
    await connection.close()
