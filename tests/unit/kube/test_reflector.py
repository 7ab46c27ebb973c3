"""A collection is followed whatever happens to its watch, and its sight tells how it fares."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.kube.cache import Sight
from atoll_operator.kube.edges import api, reflector
from atoll_operator.kube.edges.connection import connect
from atoll_operator.kube.edges.limiter import Limiter
from atoll_operator.kube.edges.reflector import Reflector, Source
from unit.kube.api_server import POD_PATH, ApiServer, serving, until

GONE = {"code": 410, "message": "too old resource version"}


class World:
    """One reflector of pods; what it was told."""

    def __init__(self, server: ApiServer, connection: api.Api, silent_seconds_max: float) -> None:
        self.server = server
        self.known: dict[str, Any] = {}
        self.lists: list[list[str]] = []
        self.resumes = 0
        source = Source(
            path=POD_PATH, query=[("labelSelector", "of")], keep=self._keep, listed=self._listed,
            changed=self._changed, resumed=self._resumed,
            silent_seconds_max=lambda: silent_seconds_max,
        )  # fmt: skip
        self.sight = Sight(tried_at=time.monotonic())
        self.reflector = Reflector(api=connection, source=source, sight=self.sight)

    def _keep(self, raw: dict[str, Any]) -> tuple[str, Any]:
        return raw["metadata"]["name"], raw.get("said")

    def _listed(self, items: list[Any], version: int) -> None:
        self.known = dict(items)
        self.lists.append([name for name, _ in items])
        assert version <= self.server.version

    def _changed(self, event: str, kept: tuple[str, Any]) -> None:
        if event == "DELETED":
            del self.known[kept[0]]
        else:
            self.known[kept[0]] = kept[1]

    def _resumed(self) -> None:
        self.resumes += 1

    async def watched(self) -> None:
        await until(lambda: bool(self.server.watchers[POD_PATH]) and self.sight.listed)


@asynccontextmanager
async def following(
    folder: Path, monkeypatch: pytest.MonkeyPatch, silent_seconds_max: float = 60.0
) -> AsyncIterator[World]:
    server = ApiServer(kinds={POD_PATH: "Pod"})
    for number in range(5):
        server.put(POD_PATH, f"p{number}", said=number)
    monkeypatch.setattr(reflector, "RETRY_SECONDS", (0.01, 0.05))
    async with serving(server, folder) as config:
        connection = await connect(Limiter(per_second=1e6, burst=1), str(config))
        world = World(server, connection, silent_seconds_max)
        task = asyncio.create_task(world.reflector.follow())
        try:
            await world.watched()
            yield world
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await connection.close()


def test_a_list_is_read_in_pages_and_only_objects_with_the_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(reflector, "PAGE_OBJECTS", 2)
        async with following(tmp_path, monkeypatch) as world:
            assert world.lists == [["p0", "p1", "p2", "p3", "p4"]]
            lists = [each for each in world.server.queries if "watch" not in each]
            assert [each.get("continue") for each in lists] == [None, "2", "4"]
            assert all(each["limit"] == "2" for each in lists)
            assert all(each["labelSelector"] == "of" for each in world.server.queries)

    asyncio.run(scenario())


def test_changes_come_by_watch_and_a_watch_that_ends_goes_on_without_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch) as world:
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

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_is_unwell_is_asked_again_without_a_list(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch) as world:
            server = world.server
            server.refusals[POD_PATH] = (status, {})
            server.end_watches(POD_PATH)
            await until(lambda: server.count("WATCH", POD_PATH) > 3)
            assert world.sight.broken_at is not None
            assert world.sight.problem == f"{status}: no"
            server.put(POD_PATH, "p7", said="in between")  # its watch is away
            del server.refusals[POD_PATH]
            await until(lambda: world.sight.broken_at is None)
            assert world.resumes == 1
            assert server.count("LIST", POD_PATH) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refused_watch_is_tried_again_and_begins_with_a_list(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch) as world:
            server = world.server
            server.refusals[POD_PATH] = (status, {})
            server.end_watches(POD_PATH)
            await until(lambda: server.count("LIST", POD_PATH) > 3)
            assert world.sight.broken_at is not None
            server.drop(POD_PATH, "p2", told=False)
            del server.refusals[POD_PATH]
            await until(lambda: world.sight.broken_at is None)
            assert "p2" not in world.known
            await world.watched()
            server.put(POD_PATH, "p9", said="later")
            await until(lambda: "p9" in world.known)

    asyncio.run(scenario())


def test_a_version_that_is_too_old_is_answered_by_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch) as world:
            world.server.tell(POD_PATH, "ERROR", GONE)
            await until(lambda: len(world.lists) == 2)

    asyncio.run(scenario())


def test_a_connection_that_is_silent_beyond_its_bookmarks_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch, silent_seconds_max=2.0) as world:
            server = world.server
            while True:
                server.put(POD_PATH, "p9", said="now")
                await until(lambda: world.known.pop("p9", None) is not None)
                before, longest = server.count("WATCH", POD_PATH), 0.0
                for _ in range(25):  # bookmarks keep it alive for longer than its limit
                    began = time.monotonic()
                    bookmark = {"metadata": {"resourceVersion": str(server.version)}}
                    server.tell(POD_PATH, "BOOKMARK", bookmark)
                    await asyncio.sleep(0.1)
                    longest = max(longest, time.monotonic() - began)
                if longest < 1.0:  # else the machine has stood still, and this shows nothing
                    break
            assert server.count("WATCH", POD_PATH) == before
            assert len(world.known) == 5
            await until(lambda: server.count("WATCH", POD_PATH) > before)
            assert server.count("LIST", POD_PATH) == 1

    asyncio.run(scenario())


def test_a_kind_of_which_nothing_is_said_is_watched_again_without_a_gap_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch, silent_seconds_max=0.2) as world:
            server = world.server
            await until(lambda: server.count("WATCH", POD_PATH) > 2)  # no bookmark ever came
            assert world.sight.broken_at is None
            assert server.count("LIST", POD_PATH) == 1
            assert world.resumes > 0  # events of the gap may come late

    asyncio.run(scenario())


def test_a_watch_that_the_api_server_does_not_take_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(reflector, "BEGIN_SECONDS_MAX", 0.2)  # long before its silence is
        async with following(tmp_path, monkeypatch) as world:
            world.server.silent = True
            world.server.end_watches(POD_PATH)
            await until(lambda: world.sight.broken_at is not None)
            world.server.silent = False
            await until(lambda: world.sight.broken_at is None)

    asyncio.run(scenario())


def test_a_list_beside_the_watch_shows_what_the_watch_has_not_shown_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch) as world:
            server = world.server
            server.items[POD_PATH].pop()  # a deletion that comes late
            await world.reflector.list_now()
            assert world.lists[-1] == ["p0", "p1", "p2", "p3"]
            server.put(POD_PATH, "p9", said="later")
            await until(lambda: "p9" in world.known)
            assert server.count("WATCH", POD_PATH) == 1  # it has gone on
            assert not world.reflector.is_broken

    asyncio.run(scenario())


def test_retry_after_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with following(tmp_path, monkeypatch) as world:
            server = world.server
            server.refusals[POD_PATH] = (429, {"Retry-After": "3"})
            server.end_watches(POD_PATH)
            await until(lambda: world.sight.broken_at is not None)
            asked = len(server.requests)
            del server.refusals[POD_PATH]
            await asyncio.sleep(0.5)  # many times RETRY_SECONDS
            assert len(server.requests) == asked
            await until(lambda: world.sight.broken_at is None)

    asyncio.run(scenario())


def test_a_server_that_is_away_breaks_the_watch_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        monkeypatch.setattr(reflector, "RETRY_SECONDS", (0.01, 0.05))
        async with serving(server, tmp_path) as config:
            connection = await connect(Limiter(per_second=1e6, burst=1), str(config))
            world = World(server, connection, 60.0)
        task = asyncio.create_task(world.reflector.follow())
        await until(lambda: world.reflector.failures > 3)
        assert world.sight.broken_at is not None
        assert not world.sight.listed
        assert world.sight.tried_at > world.sight.broken_at
        assert not task.done()
        task.cancel()
        await connection.close()

    asyncio.run(scenario())
