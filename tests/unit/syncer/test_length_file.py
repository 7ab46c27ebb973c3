"""The file with the job's length, which changes in place while the shard reads it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from atoll_protos.length import Length
from atoll_syncer import length_file
from atoll_syncer.length_file import LengthFile, follow


def test_the_file_is_read_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "length.json"
    file = LengthFile(str(path))
    path.write_text('{"steps": 200}')
    assert file.read() == Length(steps=(200,))
    path.write_text('{"steps": 300}')
    assert file.read() == Length(steps=(300,))


def test_a_file_that_is_not_there_or_damaged_says_nothing_and_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "length.json"
    file = LengthFile(str(path))
    with structlog.testing.capture_logs() as lines:
        assert file.read() is None
        assert file.read() is None
    assert len(lines) == 1
    for content in (b"{", b"\xff\xfe", b'{"steps": "x"}'):
        path.write_bytes(content)
        assert file.read() is None


def test_only_what_is_new_is_told_to_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length_file, "READ_SECONDS", 0.0)
    said = [None, Length(steps=(5,)), Length(steps=(5,)), None, Length(steps=(6,))]
    told: list[Length] = []

    async def at_once(thread: str, work: Any) -> Any:
        return work()

    def look() -> Length | None:
        if not said:
            raise asyncio.CancelledError
        return said.pop(0)

    driver: Any = SimpleNamespace(
        background=SimpleNamespace(run=at_once),
        feed=lambda effects: None,
        shard=SimpleNamespace(length_heard=lambda length, now: told.append(length)),
        now=lambda: 0.0,
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(follow(driver, look))
    assert told == [Length(steps=(5,)), Length(steps=(6,))]
