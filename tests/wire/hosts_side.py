"""A learner on several hosts whose training processes are played: real transports, links, memories.

Each host has its share of every slice in a memory of its own and a transport process beside it; the
first is the head's. What the training processes would do with torch is done here on numpy arrays:
a step adds a known value to every element, so all versions follow from the run file alone.
"""

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from atoll_protos.job.layout import Layout, TensorSpec
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.network.addresses import joined
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import WIRES_DOWN, Wire
from atoll_protos.transfer.division import Share
from atoll_worker.link import shared_memory
from atoll_worker.link.messages import (
    Adopt,
    Boundary,
    Capture,
    Configure,
    Fail,
    Finished,
    Leaving,
    Listening,
    Message,
    Proceed,
    Start,
)
from atoll_worker.link.shared_memory import SharedMemory, memory_plan
from atoll_worker.link.socket import Link
from atoll_worker.training.process import PROGRAM
from wire.raw_peer import SECONDS_MAX

SPECS = (
    TensorSpec(name="a", shape=(300, 300), dtype="float32", merge="rda"),
    TensorSpec(name="b", shape=(300, 256), dtype="float32", merge="mean"),
    TensorSpec(name="statistics", shape=(333,), dtype="float32", merge="average"),
)
SECRET = "of the side channel"
WAITS_MAX = 2400  # of WAIT_SECONDS
WAIT_SECONDS = 0.25

Key = tuple[int, int]


def run_file(wire: Wire, overlap: int) -> RunFile:
    """Lock-step, so that what is merged does not depend on who is quick."""
    sync = Sync(
        fragments=2,
        period=4,
        overlap=overlap,
        wire_up=wire,
        wire_down=wire if wire in WIRES_DOWN else Wire.INT4,
        lockstep=True,
        grace=False,
    )
    regions = (Region(name="here", learners=1),)
    return RunFile(job="wire", regions=regions, shards=1, seed=1, steps=8, sync=sync)


@dataclass(slots=True, kw_only=True)
class Host:
    """One host: its transport process, and the ends that its training process has."""

    share: Share
    process: subprocess.Popen[bytes]
    link: Link
    memory: SharedMemory
    log: Path
    silent: bool = False  # its training process reports nothing for now
    owed: list[Boundary] = field(default_factory=list)

    def report(self, *boundaries: Boundary) -> None:
        """As the training process does, also what it owes."""
        self.owed += boundaries
        while self.owed and not self.silent:
            self.link.send(self.owed.pop(0))

    def lines(self) -> list[dict[str, Any]]:
        """What its transport process has said."""
        text = self.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@dataclass(kw_only=True)
class PlayedLearner:
    """See the module. `lanes` are those of each host."""

    run: RunFile
    endpoint: str
    folder: Path
    hosts: int
    lanes: int = 1
    instance: str = "first"
    silence_seconds: float = 60.0
    owners: list[Host] = field(default_factory=list)
    theta: dict[Key, Any] = field(default_factory=dict)
    steps: int = 0
    started: bool = False
    finished: bool = False
    proceed: bool = False
    in_step: bool = False  # which waits to return
    failed: Fail | None = None
    on_capture: Callable[["PlayedLearner", Key], None] = lambda learner, key: None
    on_idle: Callable[["PlayedLearner"], None] = lambda learner: None  # nothing comes
    head_address: str = ""
    head_listens: str = "127.0.0.1"
    head_host: str = "127.0.0.1"  # as the lane processes dial it
    under: tuple[str, ...] = ()  # the command that starts its processes

    @cached_property
    def layout(self) -> Layout:
        """Of the model."""
        return self.run.layout(SPECS)

    @property
    def head(self) -> Host:
        """The first host."""
        return self.owners[0]

    # ------------------------------------------------------------ its processes

    def begin(self, *, others: bool = True) -> None:
        """Start all processes; without `others` only the head's."""
        for each in self.layout.slices:
            random = np.random.default_rng(each.fragment)
            values = random.standard_normal(each.element_count).astype(np.float32)
            self.theta[each.shard, each.fragment] = values
        self.start_host(0)
        if self.hosts > 1:
            listening = self.next()
            assert isinstance(listening, Listening), listening
            self.head_address = joined(self.head_host, listening.port)
            for host in range(1, self.hosts if others else 1):
                self.start_host(host)

    def start_host(self, host: int, **changes: Any) -> Host:
        """One transport process, and its Configure, with these changes."""
        share = Share(host * self.lanes, (host + 1) * self.lanes, self.hosts * self.lanes)
        plan = memory_plan(self.layout, self.run.sync, observer=False, share=share)
        descriptor = shared_memory.create()
        shared_memory.resize(descriptor, plan)
        held = shared_memory.attach(plan, descriptor)
        ours, theirs = socket.socketpair()
        log = self.folder / f"{self.instance}-{len(self.owners)}.log"
        with theirs, log.open("wb") as output:
            links = ("--link-fd", str(theirs.fileno()), "--memory-fd", str(descriptor))
            process = subprocess.Popen(
                [*self.under, *PROGRAM, *links],
                stderr=output,
                pass_fds=(theirs.fileno(), descriptor),
            )
        os.close(descriptor)
        found = Host(share=share, process=process, link=Link(ours), memory=held, log=log)
        self.owners.append(found)
        for key in self.theta:
            self.write(found, key)
        found.link.send(replace(self.configure(host, share), **changes))
        return found

    def configure(self, host: int, share: Share) -> Configure:
        """Of one host's transport."""
        several = self.hosts > 1
        return Configure(
            run_file=self.run,
            layout=self.layout,
            slot="here-0",
            uid="u",
            instance=f"u-{self.instance}",
            endpoints=(self.endpoint,),
            telemetry_folder="" if host else str(self.folder / self.instance),
            observer=False,
            lanes=share.parts,
            own_lanes=(share.first, share.stop) if several else None,
            lane_processes=0 if host else self.hosts - 1,
            head=(self.head_address if host else joined(self.head_listens, 0)) if several else "",
            secret=SECRET if several else "",
            silence_seconds=self.silence_seconds,
        )

    def end(self) -> None:
        """Whatever has happened, nothing is left."""
        for owner in self.owners:
            owner.process.kill()
            owner.process.wait(SECONDS_MAX)
            owner.link.close()

    # ------------------------------------------------------------ its training processes

    def train(self, until: Callable[[], bool] = lambda: False) -> None:
        """Make steps until the job is finished, `until` says so, or the transport has failed."""
        self.awaited(lambda: self.started or until())
        while not (self.finished or self.failed or until()):
            if not self.in_step:
                self.step()
            self.awaited(lambda: self.proceed or self.finished or until())
            self.in_step = not (self.proceed or self.finished)

    def step(self) -> None:
        """One step of the optimizer; the transport says when the next one may begin."""
        self.steps += 1
        for key, values in self.theta.items():
            moved = values + np.float32(0.01) * np.sin(np.arange(values.size) + self.steps)
            self.theta[key] = moved.astype(np.float32)
        self.proceed, self.in_step = False, True
        self.report(again=False)

    def awaited(self, done: Callable[[], bool]) -> None:
        """Obey what comes until `done`; a boundary after everything that changes the model."""
        waits = 0
        while not (done() or self.failed):
            if (command := self.head.link.next()) is None:
                assert not self.head.link.closed, self.head.log.read_text()
                waits += 1
                assert waits < WAITS_MAX, [owner.log.read_text()[-2000:] for owner in self.owners]
                self.head.link.wait(WAIT_SECONDS)
                self.head.link.fill()
                if not self.head.link.received:
                    self.on_idle(self)
                continue
            self.obey(command)

    def next(self) -> Message:
        """The next command, not obeyed."""
        for _ in range(WAITS_MAX):
            self.head.link.fill()
            if (command := self.head.link.next()) is not None:
                return command
            assert not self.head.link.closed, self.head.log.read_text()
            self.head.link.wait(WAIT_SECONDS)
        raise AssertionError("nothing comes")

    def obey(self, command: Message) -> None:
        """All owners carry it out."""
        match command:
            case Adopt(shard=shard, fragment=fragment, number=number):
                self.adopt((shard, fragment))
                self.report(adopted=((shard, fragment, number),))
            case Capture(slices=keys):
                for key in keys:
                    for owner in self.owners:
                        self.write(owner, key)
                    self.on_capture(self, key)
                self.report(captured=tuple(keys))
            case Start():
                self.started = True
            case Proceed():
                self.proceed = True
            case Finished(again=keys):
                for key in keys:
                    self.adopt(key)
                self.finished = True
            case Fail():
                self.failed = command

    def report(
        self,
        *,
        adopted: tuple[tuple[int, int, int], ...] = (),
        captured: tuple[Key, ...] = (),
        again: bool = True,
    ) -> None:
        """To every owner's transport, the head's last."""
        boundary = Boundary(
            own_steps=self.steps,
            tokens=10,
            loss=1.0,
            step_seconds=0.01,
            blocked_seconds=0.0,
            cursor=self.steps,
            adopted=adopted,
            captured=captured,
            again=again,
        )
        for owner in reversed(self.owners):
            if owner is self.head or adopted or captured:
                owner.report(boundary)

    def write(self, owner: Host, key: Key) -> None:
        """One capture of what an owner holds; it may have begun already."""
        span = owner.share.elements(self.layout.slice(*key).form)
        if owner.memory.counter(*key) % 2 == 0:
            owner.memory.turn(*key)
        owner.memory.capture(*key)[:] = self.theta[key][span.start : span.stop].tobytes()
        owner.memory.turn(*key)

    def adopt(self, key: Key) -> None:
        """Take what lies in the adopt regions of all owners."""
        for owner in self.owners:
            span = owner.share.elements(self.layout.slice(*key).form)
            region, form = owner.memory.adopt(*key), owner.memory.form(*key)
            value = arrays.packed(bytes(region), owner.memory.adopt_encoding(*key), form)
            values = np.concatenate([value.exact, value.coded.astype(np.float32)])
            self.theta[key][span.start : span.stop] = values

    def leave(self) -> list[int]:
        """All training processes leave; the exit codes of the transports."""
        for owner in reversed(self.owners):
            owner.link.send(Leaving(reason="finished"))
        return [owner.process.wait(SECONDS_MAX) for owner in self.owners]

    # ------------------------------------------------------------ what has come of it

    def values(self) -> list[bytes]:
        """The model, by slice."""
        return [self.theta[key].tobytes() for key in sorted(self.theta)]


@contextmanager
def played(**fields: Any) -> Iterator[PlayedLearner]:
    """A learner whose processes are gone at the end."""
    learner = PlayedLearner(**fields)
    try:
        yield learner
    finally:
        learner.end()


def commits(folder: Path) -> list[tuple[int, int, str]]:
    """Slice, version and digest of every commit on the shard's tape."""
    tape = folder / "tape.jsonl"
    text = tape.read_text() if tape.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [(x["slice"], x["version"], x["digest"]) for x in lines if x.get("event") == "commit"]


def lane_bytes(owner: Host) -> tuple[int, int]:
    """What its process says it has sent and received on its lanes, of all sessions."""
    closed = [line for line in owner.lines() if line["event"] == "lanes closed"]
    return sum(line["sent"] for line in closed), sum(line["received"] for line in closed)
