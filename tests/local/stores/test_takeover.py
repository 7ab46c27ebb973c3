"""A shard's process is replaced while it may still live, on a folder and on a bucket (rule 20)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll_operator.local.startable import free_ports
from atoll_protos.exits import ExitCode
from atoll_protos.names import ALIVE
from atoll_syncer.storage.files import FileStore
from atoll_syncer.storage.journal import Journal
from local.stores.opened import object_store
from local.stores.servers import Place, Server
from wire.fixtures import is_serving, shard_command, until_serving

SECONDS_MAX = 300.0


@dataclass(slots=True, kw_only=True)
class Process:
    """One of the two."""

    name: str
    port: int
    health: int
    log: Path
    popen: "subprocess.Popen[bytes]"

    @property
    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def listens(self) -> bool:
        with socket.socket() as dial:
            return dial.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def waits(self) -> bool:
        """It is alive, and no learner reaches it."""
        return is_serving(self.health, ALIVE) and not is_serving(self.health) and not self.listens

    def until(self, event: str, what: str) -> None:
        """Until its log has this event, with these words in the reason."""
        deadline = time.monotonic() + SECONDS_MAX
        while not any(e["event"] == event and what in str(e.get("reason")) for e in self.events):
            assert time.monotonic() < deadline, (event, self.log.read_text())
            time.sleep(0.02)


Start = Callable[[str], Process]


@pytest.fixture(params=["files", "moto"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "files":
        return Place(url=str(tmp_path / "store"), endpoint="", environment={})
    server = request.getfixturevalue("moto")
    assert isinstance(server, Server)
    return server.place()


@pytest.fixture
def start(place: Place, tmp_path: Path) -> Iterator[Start]:
    """Starts a process in the pod of its name, again after its end."""
    with contextlib.ExitStack() as stack:
        count = 0

        def starts(name: str) -> Process:
            nonlocal count
            count += 1
            port, health = free_ports(2)
            store = ("--store", place.url, "--store-endpoint", place.endpoint)
            ports = ("--health-port", str(health))
            command = shard_command(tmp_path, f"127.0.0.1:{port}", *store, *ports)
            log = tmp_path / f"{name}-{count}.log"
            environment = {**os.environ, **place.environment, "ATOLL_UID": name}
            with log.open("wb") as output:
                popen = subprocess.Popen(command, stderr=output, env=environment)
            stack.callback(popen.wait)
            stack.callback(popen.kill)
            return Process(name=name, port=port, health=health, log=log, popen=popen)

        yield starts


def who_serves(one: Process, other: Process) -> tuple[Process, Process]:
    """The one that has the shard, then the one that waits."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (is_serving(one.health) or is_serving(other.health)):
        assert time.monotonic() < deadline, one.log.read_text() + other.log.read_text()
        time.sleep(0.02)
    return (one, other) if is_serving(one.health) else (other, one)


def test_a_replacement_waits_while_the_owner_lives_and_follows_one_that_stands_or_ends(
    place: Place, start: Start
) -> None:
    owner, waiting = who_serves(start("a"), start("b"))  # both with --new
    waiting.until("waits to take the shard over", f"pod {owner.name} has the shard")
    assert waiting.waits

    owner.popen.kill()
    until_serving(waiting.health)
    owner, waiting = waiting, start(owner.name)
    waiting.until("waits to take the shard over", f"pod {owner.name} has the shard")
    assert waiting.waits

    owner.popen.send_signal(signal.SIGSTOP)
    until_serving(waiting.health)
    owner.popen.send_signal(signal.SIGCONT)
    assert owner.popen.wait(SECONDS_MAX) == ExitCode.SUPERSEDED
    owner, waiting = waiting, start(owner.name)
    waiting.until("waits to take the shard over", f"pod {owner.name} has the shard")

    owner.popen.terminate()
    assert owner.popen.wait(SECONDS_MAX) == ExitCode.TRY_AGAIN
    waiting.until("takes the shard over", f"pod {owner.name} has ended in order")
    until_serving(waiting.health)

    found = object_store(place) if place.endpoint else FileStore(Path(place.url))
    journal = Journal(found, time.time)
    assert (journal.read().epoch, journal.history.pod) == (4, waiting.name)
    assert journal.history.run
    assert len(journal.takeovers) == 3
