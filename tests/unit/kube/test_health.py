"""What the probes say: they fail for what a restart heals, and never because nothing happens."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from atoll_operator.kube.observed.cache import Sight
from atoll_operator.kube.serve import (
    BROKEN_SECONDS_MAX,
    CONNECTIONS_MAX,
    ELECTION_SECONDS_MAX,
    PASS_SECONDS_MAX,
    WATCH_SECONDS_MAX,
    Signs,
    is_live,
    is_ready,
    serve_http,
)
from atoll_operator.local.startable import free_ports

NODES = "/api/v1/nodes"
NOW = 10_000.0


def sight(ago: float = 50.0, **more: Any) -> Sight:
    """A watch that has lived, and was listed, so long ago."""
    return Sight(**({"tried_at": NOW - ago, "alive_at": NOW - ago, "listed": True} | more))


def signs(now: float = NOW, **more: Any) -> Signs:
    """A leader whose API server has answered for an hour."""
    known: dict[str, Any] = {
        "leads": True,
        "holder": "a",
        "tried_at": now - 1.0,
        "answering_since": now - 3600.0,
    }
    return Signs(now=now, **({"sights": {NODES: sight()}} | known | more))


BROKEN: dict[str, Any] = {"problem": "reset", "broken_at": NOW - BROKEN_SECONDS_MAX}
LONG_BROKEN: dict[str, Any] = BROKEN | {"broken_at": NOW - 7200.0}
UNLISTED: dict[str, Any] = {"problem": "403: forbidden", "broken_at": NOW - 1.0, "listed": False}


@pytest.mark.parametrize(
    ("more", "dead", "unready"),
    [
        ({}, "", ""),  # without jobs and events
        ({"leads": False}, "", ""),
        ({"passes": {"demo/tiny": NOW - PASS_SECONDS_MAX}}, "", ""),
        ({"passes": {"demo/tiny": NOW - PASS_SECONDS_MAX - 1}}, "the pass of demo/tiny hangs", ""),
        ({"sights": {NODES: sight(WATCH_SECONDS_MAX + 1)}}, f"the watch of {NODES} hangs", ""),
        ({"tried_at": NOW - ELECTION_SECONDS_MAX - 1}, "the election hangs", ""),
        ({"sights": {NODES: sight(**BROKEN)}}, "", ""),  # a short break
        (
            {"sights": {NODES: sight(**UNLISTED)}},
            "",
            f"{NODES} is not listed yet: 403: forbidden",
        ),
        # the API server was away for long, is still, or answers again since a moment
        ({"sights": {NODES: sight(**LONG_BROKEN)}, "answering_since": None}, "", ""),
        ({"sights": {NODES: sight(**LONG_BROKEN)}, "answering_since": NOW - 59.0}, "", ""),
        ({"sights": {NODES: sight(**LONG_BROKEN, gone=True)}}, "", ""),
        ({"sights": {NODES: sight(**LONG_BROKEN)}}, "", f"{NODES} cannot be watched: reset"),
    ],
)
def test_a_part_that_hangs_is_not_live_and_what_cannot_be_seen_is_not_ready(
    more: Mapping[str, Any], dead: str, unready: str
) -> None:
    for problems, said in ((is_live(signs(**more)), dead), (is_ready(signs(**more)), unready)):
        assert problems == ([said] if said else [])


async def test_requests_that_never_end_keep_no_probe_from_an_answer_and_are_ended() -> None:
    (port,) = free_ports(1)
    runner = await serve_http(port, signs, CollectorRegistry())
    hanging = []
    try:
        for _ in range(3 * CONNECTIONS_MAX):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez")
            hanging.append((reader, writer))
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/readyz") as reply,
        ):
            assert reply.status == 200
        for reader, _ in hanging[: 2 * CONNECTIONS_MAX]:
            assert await asyncio.wait_for(reader.read(), 60.0) == b""
    finally:
        for _, writer in hanging:
            writer.close()
        await runner.cleanup()
