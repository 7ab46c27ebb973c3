"""A transport process played by a thread: the learner's other end, as a script in Python."""

import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from atoll_protos.environment import Env
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.transfer.codecs import Wire
from atoll_worker.job import Job
from atoll_worker.link.messages import Adopt, Boundary, Leaving, Message, Start
from atoll_worker.link.socket import Link, TransportEnd, open_transport_end
from atoll_worker.model.parameters import from_bytes
from atoll_worker.training import replica

SECONDS_MAX = 60.0
RUN_FILE = RunFile(
    job="tiny",
    regions=(Region(name="here", learners=2),),
    shards=2,
    seed=5,
    steps=100,
    sync=Sync(fragments=2, period=4, wire_down=Wire.F32),
)
LOCKSTEP = RUN_FILE.from_json(RUN_FILE.to_json().replace('"lockstep": false', '"lockstep": true'))
ENDPOINTS = ("localhost:1", "localhost:2")


def job_of(run_file: RunFile = RUN_FILE, slot: str = "here-1") -> Job:
    """As the environment of a process would give it."""
    instance = os.environ.get(Env.INSTANCE) or f"no-pod-{secrets.token_hex(4)}"
    return Job(run_file=run_file, endpoints=ENDPOINTS, slot=slot, uid="no-pod", instance=instance)


@dataclass
class FakeTransport:
    """What a script of the other end may do; every wait ends after SECONDS_MAX."""

    end: TransportEnd
    received: list[Message] = field(default_factory=list)

    def send(self, *commands: Message) -> None:
        for command in commands:
            self.end.send(command)

    def next(self) -> Message:
        """The next message of the training process."""
        link, deadline = self.end.link, time.monotonic() + SECONDS_MAX
        while (message := link.next()) is None:
            assert not link.closed, f"the link ended after {self.received}"
            assert time.monotonic() < deadline, f"nothing came after {self.received}"
            link.wait(SECONDS_MAX)
            link.fill()
        self.received.append(message)
        return message

    def boundary(self) -> Boundary:
        message = self.next()
        assert isinstance(message, Boundary), message
        return message

    def until_leaving(self) -> Leaving:
        while not isinstance(message := self.next(), Leaving):
            pass
        return message

    def offer_values(self, value: float, number: int = 0) -> None:
        """Put one value into every adopt region and ask for its adoption."""
        for each in self.end.configure.layout.slices:
            self.adopt(each.shard, each.fragment).fill_(value)
            self.send(Adopt(shard=each.shard, fragment=each.fragment, number=number, blend=0.0))

    def begin(
        self,
        *,
        value: float = 1.0,
        cursor: int = 0,
        tick: int = 0,
        data_state: bytes | None = None,
    ) -> None:
        """Version 0, then Start."""
        self.offer_values(value)
        adopted: list[Any] = []
        while len(adopted) < len(self.end.configure.layout.slices):
            adopted += self.boundary().adopted
        self.send(Start(incarnation=3, cursor=cursor, tick=tick, data_state=data_state))

    def captures(self) -> torch.Tensor:
        """All capture regions, one after the other."""
        regions = [self.end.memory.capture(*key) for key in self.end.memory.plan.slices]
        return torch.cat([from_bytes(each, torch.float32) for each in regions])

    def adopt(self, shard: int, fragment: int) -> torch.Tensor:
        """One adopt region; the wire down of RUN_FILE is f32."""
        return from_bytes(self.end.memory.adopt(shard, fragment), torch.float32)


class Gate:
    """Lets the test go on when the script has come to a point, and the other way round."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def open(self) -> None:
        self.event.set()

    def pass_(self) -> None:
        assert self.event.wait(SECONDS_MAX)


@dataclass
class FakeProcess:
    """The part of Popen that is used."""

    thread: threading.Thread
    killed: bool = False

    def wait(self, timeout: float | None = None) -> int:
        if self.killed:
            return -9
        self.thread.join(timeout)
        if self.thread.is_alive():
            raise subprocess.TimeoutExpired("fake", timeout or 0.0)
        return 0

    def kill(self) -> None:
        self.killed = True


@contextmanager
def playing(
    script: Callable[[FakeTransport], None], *, stays: bool = False
) -> Iterator[list[threading.Thread]]:
    """Learners and observers started inside get `script` as their transport process, in a thread.

    What the script raises is raised at the end. Its end of the link `stays` open, or ends with it.
    """
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def start(memory_fd: int) -> tuple[FakeProcess, Link]:
        ours, theirs = socket.socketpair()
        memory = os.dup(memory_fd)

        def play() -> None:
            try:
                fake = FakeTransport(open_transport_end(theirs.detach(), memory))
                try:
                    script(fake)
                finally:
                    if not stays:
                        fake.end.link.close()
            except BaseException as error:
                failures.append(error)
            finally:
                os.close(memory)

        thread = threading.Thread(target=play, daemon=True)
        threads.append(thread)
        thread.start()
        return FakeProcess(thread), Link(ours)

    try:
        with patch.object(replica, "start", start):
            yield threads
    finally:
        for thread in threads:
            thread.join(SECONDS_MAX)
        if failures:  # rather than what it has led to on our side
            raise failures[0]
        assert not any(thread.is_alive() for thread in threads), "the script hangs"
