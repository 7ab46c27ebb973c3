"""Jobs come into the cache by a real kopf, which watches a small API server on loopback."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import kopf
import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import Api, ObjectNotFoundError, path
from atoll_operator.kube.edges.jobs import SETTLING_SECONDS, THREAD, Jobs
from atoll_operator.kube.edges.watches import jobs as jobs_source
from atoll_operator.kube.names import GROUP, VERSION
from atoll_operator.kube.observed.cache import Key
from unit.kube.api_server import DISCOVERY, ApiServer, connected, running, until

WHERE = path(KIND, "")
TINY: Key = ("demo", "tiny")


class Found:
    """Jobs that are followed, and of which a pass was asked for."""

    def __init__(self, server: ApiServer, connection: Api) -> None:
        self.server, self.cache = server, connection.cache
        self.fed: list[Key] = []
        self.edited: list[Key] = []
        source = jobs_source(self.cache, "", self.fed.append, self.edited.append)
        self.jobs = Jobs(api=connection, source=source)

    async def watched(self) -> None:
        wanted = self.jobs.wake
        await until(lambda: bool(self.server.watchers[WHERE]) and not wanted.is_set())


@asynccontextmanager
async def follow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, **refusals: Any
) -> AsyncIterator[Found]:
    """Jobs of these names that are being followed; kopf has ended afterwards."""
    server = ApiServer(kinds={WHERE: KIND}, **refusals)
    for name in names:
        server.put(WHERE, name)
    async with connected(server, folder) as connection:
        monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        found = Found(server, connection)
        async with running(found.jobs.follow()) as part:
            yield found
            assert not part.done()
        await until(lambda: all(each.name != THREAD for each in threading.enumerate()))


Followed = Callable[..., AbstractAsyncContextManager[Found]]


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    return partial(follow, tmp_path, monkeypatch)


async def test_a_job_that_is_made_changed_or_deleted_is_so_here(followed: Followed) -> None:
    async with followed("old") as one:
        await one.watched()
        assert one.cache.job(("demo", "old"))
        one.server.put(WHERE, "tiny", spec={"steps": 2})
        await until(lambda: one.cache.job(TINY) is not None)
        one.server.put(WHERE, "tiny", spec={"steps": 3})
        await until(lambda: (one.cache.job(TINY) or {})["spec"]["steps"] == 3)
        assert TINY in one.fed
        one.fed.clear()
        one.server.drop(WHERE, "tiny")
        await until(lambda: one.cache.job(TINY) is None)
        assert TINY in one.fed
    assert {verb for verb, _ in one.server.requests} <= {
        "LIST",
        "WATCH",
    }  # kopf leaves nothing on it


async def test_an_edit_of_a_job_is_told_apart_from_its_status(followed: Followed) -> None:
    async with followed() as one:
        await one.watched()
        one.server.put(WHERE, "tiny", metadata={"generation": 1})
        await until(lambda: one.edited == [TINY])
        one.server.put(WHERE, "tiny", metadata={"generation": 1}, status={"run": "r"})
        one.server.put(WHERE, "tiny", metadata={"generation": 2})
        await until(lambda: len(one.edited) == 2)
        assert len(one.fed) >= 3
        annotated = {"generation": 2, "annotations": {"atoll.dev/release-hold": "true"}}
        one.server.put(WHERE, "tiny", metadata=annotated)
        await until(lambda: len(one.edited) == 3)


async def test_a_watch_that_is_refused_comes_back_with_what_was_missed(followed: Followed) -> None:
    async with followed("tiny") as one:
        await until(lambda: bool(one.server.watchers[WHERE]))
        one.server.refusals[WHERE] = (404, {})
        one.server.end_watches(WHERE)
        await until(lambda: bool(one.jobs.sight.problem))
        one.server.drop(WHERE, "tiny", told=False)
        one.server.put(WHERE, "new")
        one.server.refusals.clear()
        await until(lambda: not one.jobs.sight.problem and bool(one.server.watchers[WHERE]))
        assert one.cache.job(TINY) is None
        assert one.cache.job(("demo", "new"))


async def test_a_job_that_is_deleted_in_a_gap_of_kopfs_watch_is_gone(followed: Followed) -> None:
    async with followed("tiny", "stays") as one:
        await one.watched()
        one.server.drop(WHERE, "tiny", told=False)
        error = {"code": 410, "message": "too old", "reason": "Expired", "kind": "Status"}
        one.server.tell(WHERE, "ERROR", error)  # kopf lists again
        await until(lambda: one.cache.job(TINY) is None)
        assert one.cache.job(("demo", "stays"))


async def test_kopf_waits_for_the_kind(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    group, named = f"/apis/{GROUP}/{VERSION}", DISCOVERY[f"/apis/{GROUP}/{VERSION}"]
    monkeypatch.setitem(DISCOVERY, group, {"resources": []})
    async with followed() as one:
        await until(lambda: "discovery" in one.jobs.sight.problem)
        monkeypatch.setitem(DISCOVERY, group, named)
        await until(lambda: bool(one.server.watchers[WHERE]))
        one.server.put(WHERE, "tiny")
        await until(lambda: one.cache.job(TINY) is not None)
        assert not one.jobs.sight.problem


async def test_what_a_stopped_kopf_still_says_is_left_out(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = threading.Event()

    async def talker(
        registry: kopf.OperatorRegistry, stop_flag: asyncio.Event, **_: object
    ) -> None:
        handle: Any = next(iter(registry._watching.get_all_handlers())).fn
        for version, name in ((8, "before"), (9, "after")):
            metadata = {"name": name, "namespace": "demo", "uid": name, "resourceVersion": version}
            await handle(event={"type": "ADDED", "object": {"kind": KIND, "metadata": metadata}})
            await stop_flag.wait()
        spoken.set()

    monkeypatch.setattr("kopf.operator", talker)
    async with followed() as one:
        await until(lambda: one.cache.job(("demo", "before")) is not None)
    await until(spoken.is_set)
    await asyncio.sleep(0.05)
    assert one.cache.job(("demo", "after")) is None


async def test_a_job_whose_status_finds_no_object_is_gone_until_a_list_shows_it(
    followed: Followed,
) -> None:
    async with followed("tiny") as one:
        await one.watched()
        (raw,) = one.cache.jobs("")
        one.server.drop(WHERE, "tiny", told=False)
        with pytest.raises(ObjectNotFoundError):
            await one.jobs.api.apply_status(*TINY, raw["metadata"]["uid"], {})
        assert one.cache.job(TINY) is None
        one.server.items[WHERE].append(raw)
        await one.jobs.list_now()
        assert one.cache.job(TINY) == raw


async def test_a_kopf_is_followed_by_another(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one that has found nothing to watch is not the last."""
    monkeypatch.setattr("atoll_operator.kube.edges.jobs.KOPF_SECONDS_MAX", 1.0)
    monkeypatch.setattr("atoll_operator.kube.edges.jobs.BEAT_SECONDS", 0.1)
    async with followed("tiny") as one:
        await until(lambda: one.server.count("WATCH", WHERE) >= 2)
        assert not one.jobs.sight.problem


async def test_quiet_needs_no_list(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens, and no bookmark comes either."""
    monkeypatch.setattr("atoll_operator.kube.edges.jobs.INACTIVE_SECONDS", 1.0)
    async with followed("tiny") as one:
        await one.watched()
        await asyncio.sleep(SETTLING_SECONDS)
        await until(lambda: not one.jobs.wake.is_set())
        lists, watches = one.server.count("LIST", WHERE), one.server.count("WATCH", WHERE)
        await until(lambda: one.server.count("WATCH", WHERE) >= watches + 2)
        assert one.server.count("LIST", WHERE) == lists
