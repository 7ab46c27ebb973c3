"""Fixtures of tests of a shard."""

from pathlib import Path

import pytest

from atoll_syncer.storage.files import FileStore
from unit.syncer.fixtures import Play


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path)
    store.open()
    return store


@pytest.fixture
def play() -> Play:
    return Play()
