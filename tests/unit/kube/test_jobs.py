"""Jobs come into the cache by a real kopf, which watches a small API server on loopback."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import pytest

from atoll_operator.api.spec import KIND
from atoll_operator.kube.cache import Key
from atoll_operator.kube.edges.api import jobs_path
from atoll_operator.kube.edges.connection import connect
from atoll_operator.kube.edges.jobs import SETTLING_SECONDS, THREAD, Jobs, run
from atoll_operator.kube.edges.limiter import Limiter
from atoll_operator.kube.names import GROUP, VERSION
from unit.kube.api_server import DISCOVERY, ApiServer, serving, until

WHERE = jobs_path("")
TINY: Key = ("demo", "tiny")


@asynccontextmanager
async def followed(
    server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Jobs]:
    """Jobs that are being followed; kopf has ended afterwards."""
    server.kinds[WHERE] = KIND
    async with serving(server, folder) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        connection = await connect(Limiter(per_second=1e6, burst=1), str(config))
        jobs = Jobs(
            api=connection, cache=connection.cache, namespace="", feed=lambda _: None,
            edited=lambda _: None,
        )  # fmt: skip
        part = asyncio.create_task(jobs.follow())
        try:
            yield jobs
            assert not part.done()
        finally:
            part.cancel()
            await asyncio.gather(part, return_exceptions=True)
            await until(lambda: all(each.name != THREAD for each in threading.enumerate()))
            await connection.close()


def test_a_job_that_is_made_changed_and_deleted_is_so_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        server.put(WHERE, "old", spec={"steps": 1})
        async with followed(server, tmp_path, monkeypatch) as jobs:
            fed: list[Key] = []
            jobs.feed = fed.append
            await until(lambda: bool(server.watchers[WHERE]))
            assert jobs.cache.job(("demo", "old"))
            server.put(WHERE, "tiny", spec={"steps": 2})
            await until(lambda: jobs.cache.job(TINY) is not None)
            server.put(WHERE, "tiny", spec={"steps": 3})
            await until(lambda: (jobs.cache.job(TINY) or {})["spec"]["steps"] == 3)
            assert TINY in fed
            fed.clear()
            server.drop(WHERE, "tiny")
            await until(lambda: jobs.cache.job(TINY) is None)
            assert TINY in fed

    asyncio.run(scenario())


def test_an_edit_of_a_job_is_told_apart_from_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        async with followed(server, tmp_path, monkeypatch) as jobs:
            fed: list[Key] = []
            edited: list[Key] = []
            jobs.feed, jobs.edited = fed.append, edited.append
            await until(lambda: bool(server.watchers[WHERE]))
            server.put(WHERE, "tiny", metadata={"generation": 1})
            await until(lambda: edited == [TINY])
            server.put(WHERE, "tiny", metadata={"generation": 1}, status={"run": "r"})
            server.put(WHERE, "tiny", metadata={"generation": 2})
            await until(lambda: len(edited) == 2)
            assert len(fed) >= 3
            annotated = {"generation": 2, "annotations": {"atoll.dev/release-hold": "true"}}
            server.put(WHERE, "tiny", metadata=annotated)
            await until(lambda: len(edited) == 3)

    asyncio.run(scenario())


def test_a_watch_that_is_refused_is_said_and_begun_again_with_what_was_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        server.put(WHERE, "tiny")
        async with followed(server, tmp_path, monkeypatch) as jobs:
            await until(lambda: bool(server.watchers[WHERE]))
            server.refusals[WHERE] = (404, {})
            server.end_watches(WHERE)
            await until(lambda: "404" in jobs.sight.problem or bool(_said(jobs)))
            server.drop(WHERE, "tiny", told=False)
            server.put(WHERE, "new")
            server.refusals.clear()
            await until(lambda: not jobs.sight.problem)
            await until(lambda: bool(server.watchers[WHERE]))
            assert jobs.cache.job(TINY) is None
            assert jobs.cache.job(("demo", "new"))

    asyncio.run(scenario())


def _said(jobs: Jobs) -> str:
    return jobs.sight.problem


def test_a_job_that_was_deleted_in_a_gap_of_kopfs_watch_is_gone_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        server.put(WHERE, "tiny")
        server.put(WHERE, "stays")
        async with followed(server, tmp_path, monkeypatch) as jobs:
            await until(lambda: bool(server.watchers[WHERE]) and not jobs.wants_list.is_set())
            server.drop(WHERE, "tiny", told=False)
            error = {"code": 410, "message": "too old", "reason": "Expired", "kind": "Status"}
            server.tell(WHERE, "ERROR", error)  # kopf lists again
            await until(lambda: jobs.cache.job(TINY) is None)
            assert jobs.cache.job(("demo", "stays"))

    asyncio.run(scenario())


def test_kopf_leaves_nothing_on_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server = ApiServer()
        async with followed(server, tmp_path, monkeypatch) as jobs:
            await until(lambda: bool(server.watchers[WHERE]))
            server.put(WHERE, "tiny")
            await until(lambda: jobs.cache.job(TINY) is not None)
        assert {verb for verb, _ in server.requests} <= {"LIST", "WATCH"}

    asyncio.run(scenario())


def test_kopf_is_begun_again_when_discovery_does_not_name_jobs_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, named = f"/apis/{GROUP}/{VERSION}", DISCOVERY[f"/apis/{GROUP}/{VERSION}"]

    async def scenario() -> None:
        server = ApiServer()
        monkeypatch.setitem(DISCOVERY, group, {"resources": []})
        async with followed(server, tmp_path, monkeypatch) as jobs:
            await until(lambda: "discovery" in jobs.sight.problem)
            monkeypatch.setitem(DISCOVERY, group, named)
            await until(lambda: bool(server.watchers[WHERE]))
            server.put(WHERE, "tiny")
            await until(lambda: jobs.cache.job(TINY) is not None)
            assert not jobs.sight.problem

    asyncio.run(scenario())


def test_what_a_stopped_kopf_still_says_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str | None] = []
    spoken = threading.Event()

    async def talker(
        registry: kopf.OperatorRegistry, stop_flag: asyncio.Event, **_: object
    ) -> None:
        tell: Any = next(iter(registry._watching.get_all_handlers())).fn
        raw = {"metadata": {"name": "tiny"}}

        async def say(kind: str) -> None:
            await tell(event={"type": kind, "object": raw})

        await say("ADDED")
        await stop_flag.wait()
        await say("MODIFIED")
        spoken.set()

    monkeypatch.setattr("kopf.operator", talker)

    async def scenario() -> None:
        part = asyncio.create_task(run(lambda kind, _: said.append(kind), lambda: None, ""))
        await until(lambda: said == ["ADDED"])
        part.cancel()
        await asyncio.gather(part, return_exceptions=True)
        await until(spoken.is_set)
        await asyncio.sleep(0.05)
        assert said == ["ADDED"]

    asyncio.run(scenario())


def test_a_list_that_is_refused_is_asked_for_again_when_the_api_server_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ApiServer()
        server.refusals[WHERE] = (429, {"Retry-After": "60"})
        async with followed(server, tmp_path, monkeypatch) as jobs:
            await until(lambda: bool(_said(jobs)))
            await asyncio.sleep(1.5)
            assert server.count("LIST", WHERE) == 1

    asyncio.run(scenario())


def test_a_quiet_watch_is_begun_again_without_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing happens, and no bookmark comes either."""
    monkeypatch.setattr("atoll_operator.kube.edges.jobs.INACTIVE_SECONDS", 0.2)

    async def scenario() -> None:
        server = ApiServer()
        server.put(WHERE, "tiny")
        async with followed(server, tmp_path, monkeypatch) as jobs:
            await until(lambda: bool(server.watchers[WHERE]) and not jobs.wants_list.is_set())
            await asyncio.sleep(SETTLING_SECONDS)
            await until(lambda: not jobs.wants_list.is_set())
            lists, watches = server.count("LIST", WHERE), server.count("WATCH", WHERE)
            await until(lambda: server.count("WATCH", WHERE) >= watches + 3)
            server.end_watches(WHERE)
            await until(lambda: server.count("WATCH", WHERE) >= watches + 5)
            assert server.count("LIST", WHERE) == lists

    asyncio.run(scenario())
