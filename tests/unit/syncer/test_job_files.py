"""The files with the job's length and learners, which change in place while a shard reads them."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from atoll_protos.job.schedule import Length, read
from atoll_syncer.duties.background import Background, Thread, start_threads
from atoll_syncer.edges import job_files
from atoll_syncer.edges.job_files import JobFile, follow
from atoll_syncer.model.effects import Effect


def test_the_same_text_is_parsed_once(tmp_path: Path) -> None:
    path, parsed = tmp_path / "slots.json", list[str]()

    def parse(text: str) -> str:
        parsed.append(text)
        return text

    file = JobFile(str(path), parse)
    for text in ("one", "one", "two", "one"):
        path.write_text(text)
        assert file.read() == text
    assert parsed == ["one", "two", "one"]


def test_a_store_that_stands_still_holds_no_list_up() -> None:
    """A machine is revoked while a snapshot waits for a bucket: the list is read all the same."""
    told = asyncio.Event()

    async def follows() -> None:
        executors, release = start_threads(), threading.Event()
        background = Background(executors, Mock(), Mock(), Mock())
        driver: Any = SimpleNamespace(
            background=background, feed=lambda _: told.set(), now=lambda: 0.0
        )
        for thread in Thread:
            if thread is not Thread.FILES:
                executors[thread].submit(release.wait)
        background.spawn(follow(driver, lambda: "a list", lambda *_: []))
        try:
            await asyncio.wait_for(told.wait(), 60.0)
        finally:
            release.set()
            background.stop()

    asyncio.run(follows())


def test_a_file_that_is_not_there_or_damaged_says_nothing_and_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "length.json"
    file = JobFile(str(path), read)
    with structlog.testing.capture_logs() as lines:
        assert file.read() is None
        assert file.read() is None
    assert len(lines) == 1
    for content in (b"{", b"\xff\xfe", b'{"revision": 1, "steps": "x"}'):
        path.write_bytes(content)
        assert file.read() is None


def test_only_what_is_new_is_told_to_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "READ_SECONDS", 0.0)
    said = [None, Length(steps=5), Length(steps=5), None, Length(steps=6)]
    told: list[Length] = []

    async def at_once(thread: str, work: Any) -> Any:
        return work()

    def look() -> Length | None:
        if not said:
            raise asyncio.CancelledError
        return said.pop(0)

    def hear(length: Length, now: float) -> list[Effect]:
        told.append(length)
        return []

    driver: Any = SimpleNamespace(
        background=SimpleNamespace(run=at_once),
        feed=lambda effects: None,
        now=lambda: 0.0,
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(follow(driver, look, hear))
    assert told == [Length(steps=5), Length(steps=6)]
