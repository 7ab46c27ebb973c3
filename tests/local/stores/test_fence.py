"""A process that slept while another took its shard over is deposed by its store (rule 20)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll_protos.exits import ExitCode
from atoll_syncer.storage.journal import Journal
from atoll_syncer.storage.store import FileStore
from local.command import TESTS, python_path
from local.stores.conftest import SERVERS
from local.stores.opened import AnyStore, object_store
from local.stores.servers import Place, Server

SECONDS_MAX = 300.0
ROUNDS = 4
ENTRIES = 20  # of each process before the next takes over, and while it sleeps


@pytest.fixture(params=["files", *SERVERS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder of each kind of store."""
    if request.param == "files":
        return Place(url=str(tmp_path / "store"), endpoint="", environment={})
    server = request.getfixturevalue(request.param)
    assert isinstance(server, Server)
    return server.place()


@contextmanager
def appending(place: Place, pod: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has begun its term."""
    command = (sys.executable, "-m", "local.stores.fence_script", place.url, place.endpoint, pod)
    environment = {**os.environ, **place.environment, "PYTHONPATH": python_path(TESTS)}
    with subprocess.Popen(
        command, cwd=TESTS, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip().isdecimal(), "it ended before its term"
            yield process
        finally:
            process.kill()


def more_entries(store: AnyStore) -> None:
    """Wait for ENTRIES more."""
    deadline = time.monotonic() + SECONDS_MAX
    wanted = len(store.names("log/")) + ENTRIES
    while len(store.names("log/")) < wanted:
        assert time.monotonic() < deadline, "nothing is appended"
        time.sleep(0.02)


def test_who_wakes_up_after_its_successor_began_never_appends_again(place: Place) -> None:
    """Rule 20: an old term's entry cannot be created after the new term's record."""
    found = object_store(place) if place.endpoint else FileStore(Path(place.url))
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(appending(place, "pod-0"))
        for number in range(1, ROUNDS + 1):
            more_entries(found)
            owner.send_signal(signal.SIGSTOP)
            successor = stack.enter_context(appending(place, f"pod-{number}"))
            more_entries(found)
            owner.send_signal(signal.SIGCONT)
            assert owner.wait(SECONDS_MAX) == ExitCode.SUPERSEDED
            owner = successor
        more_entries(found)
    check_terms(found)


def check_terms(store: AnyStore) -> None:
    """Every entry is of the term that began last before it; terms follow one another."""
    epoch, names = 0, store.names("log/")
    for name in names:
        document = json.loads(store.read(name))
        begins = document["records"][0]["kind"] == "TermBegun"
        epoch += begins
        assert document["epoch"] == epoch, name
    assert epoch == ROUNDS + 1
    reader = Journal(store, time.time)
    assert reader.read().epoch == epoch
    assert (reader.position, reader.lost_entries) == (len(names), 0)
