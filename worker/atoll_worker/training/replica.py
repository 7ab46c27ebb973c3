"""The training side of the link: obeys the transport at step boundaries, and reports to it."""

import os
import subprocess
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import nn

from atoll_protos.layout import Layout, Slice, build_layout
from atoll_worker.errors import LearnerError, TransportLostError
from atoll_worker.link import memory, messages
from atoll_worker.link import socket as links
from atoll_worker.link.codec import LinkError
from atoll_worker.link.memory import Memory
from atoll_worker.link.socket import Link
from atoll_worker.settings import Settings
from atoll_worker.training import process
from atoll_worker.training.parameters import Place, device_of, pairs, travelling
from atoll_worker.training.staging import Staging, Ticket, staging_for

FATE_SECONDS_MAX = 10.0  # from the end of its link to its exit code, on a busy machine

Key: TypeAlias = tuple[int, int]  # (shard, fragment): a slice


@dataclass(slots=True)
class Work:
    """What one boundary has put in line."""

    adopted: list[tuple[int, int, int]] = field(default_factory=list)  # shard, fragment, number
    captured: list[Key] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tickets)


@dataclass(slots=True, kw_only=True)
class Replica:
    """A model, its shared memory and the link to the transport process.

    A Boundary leaves when the device has done all that it names, and never before an older one;
    on CPU that is at once.
    """

    places: Sequence[Place]
    slices: dict[Key, Slice]
    memory: Memory
    staging: Staging
    link: Link
    process: subprocess.Popen[bytes]
    tick: int = 0
    start: messages.Start | None = None
    held: set[Key] = field(default_factory=set)  # slices that have been adopted
    proceed: bool = False
    finished: bool = False
    pending: deque[tuple[messages.Boundary, Work]] = field(default_factory=deque)
    under_way: Counter[Key] = field(default_factory=Counter)  # captures that are not settled

    def obey(self) -> Work:
        """Carry out, without waiting, what the transport has asked for: adopt, then capture.

        Raises LearnerError when the job refuses this process, TransportLostError when it is gone.
        """
        work = Work()
        captures: dict[Key, None] = {}
        for command in self.link.receive():
            match command:
                case messages.Adopt(shard=shard, fragment=fragment, number=number, blend=blend):
                    work.tickets.append(self._adopt((shard, fragment), blend))
                    work.adopted.append((shard, fragment, number))
                case messages.Capture(slices=slices):
                    captures.update(dict.fromkeys(slices))
                case messages.Tick(tick=tick):
                    self.tick = max(self.tick, tick)
                case messages.Start():
                    self.start = command
                    self.tick = max(self.tick, command.tick)
                case messages.Proceed():
                    self.proceed = True
                case messages.Finished():
                    self.finished = True
                case messages.Fail(exit_code=exit_code, reason=reason):
                    raise LearnerError(exit_code, reason)
                case _:
                    raise AssertionError(f"{command} is no command")
        for key in captures:
            work.tickets.append(self.capture(key))
            work.captured.append(key)
        if self.link.closed and not self.finished:
            raise TransportLostError(f"the transport process is gone ({self._fate()}); start again")
        return work

    def report(self, boundary: messages.Boundary, work: Work, *, wait: bool = False) -> None:
        """Send the Boundary when its work is done; with `wait`, stay until it is."""
        self.pending.append((boundary, work))
        self.settle(wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        """Send the Boundaries whose work is done, in order."""
        while self.pending:
            boundary, work = self.pending[0]
            if wait:
                for ticket in work.tickets:
                    ticket.wait()
            elif not all(ticket.done() for ticket in work.tickets):
                break
            for key in work.captured:
                self._captured(key)
            self.send(boundary)
            self.pending.popleft()
        self.link.flush()

    def capture(self, key: Key) -> Ticket:
        """Put the copy of a slice in line; its counter is odd until all such are settled."""
        if not self.under_way[key]:
            self.memory.turn(*key)
        self.under_way[key] += 1
        region = self.memory.capture(*key)
        return self.staging.capture(pairs(self.places, self.slices[key], region))

    def _captured(self, key: Key) -> None:
        self.under_way[key] -= 1
        if not self.under_way[key]:
            self.memory.turn(*key)

    def _adopt(self, key: Key, blend: float) -> Ticket:
        self.held.add(key)
        region = self.memory.adopt(*key)
        return self.staging.adopt(pairs(self.places, self.slices[key], region), blend)

    def _fate(self) -> str:
        try:
            return f"exit code {self.process.wait(FATE_SECONDS_MAX)}"
        except subprocess.TimeoutExpired:
            return "it closed its link"

    def capture_seed(self) -> None:
        """Fill every capture region with the model as it is."""
        for key in self.slices:
            self.capture(key).wait()
            self._captured(key)

    def leave(self, reason: str) -> None:
        """Settle, say Leaving, and see the transport process out."""
        try:
            if not self.link.closed:
                self.settle(wait=True)
                self.send(messages.Leaving(reason=reason))
        except TransportLostError:
            pass  # it has not read for long: it is killed below
        finally:
            process.stop(self.process, self.link)
            self.staging.close()

    def send(self, message: messages.Message) -> None:
        """Send; TransportLostError when the other end has not read for very long."""
        try:
            self.link.send(message)
        except LinkError as error:
            raise TransportLostError(f"{error}; start again") from error


def open_replica(
    model: nn.Module,
    settings: Settings,
    *,
    observer: bool = False,
) -> Replica:
    """Lay the model out, capture its first value as a seed, and start the transport process."""
    run_file = settings.run_file
    places = travelling(model, run_file.sync.mean_patterns)
    specs = tuple(place.spec for place in places)
    layout: Layout = build_layout(specs, run_file.sync.fragments, run_file.shards)
    plan = links.memory_plan(layout, run_file.sync, observer=observer)
    descriptor = memory.create(plan)
    try:
        shared = memory.attach(plan, descriptor)
        child, link = process.start(descriptor)
    finally:
        os.close(descriptor)
    with ExitStack() as undo:
        undo.callback(process.abandon, child, link)
        staging = staging_for(device_of(places), shared.whole())
        replica = Replica(
            places=places,
            slices={(each.shard, each.fragment): each for each in layout.slices},
            memory=shared,
            staging=staging,
            link=link,
            process=child,
        )
        if not observer:
            replica.capture_seed()
        link.send(
            messages.Configure(
                run_file=run_file.to_json(),
                tensors=specs,
                layout_digest=layout.digest,
                slot=settings.slot,
                uid=settings.uid,
                instance=settings.instance,
                endpoints=settings.endpoints,
                telemetry_folder=settings.telemetry_folder,
                observer=observer,
                training_pid=os.getpid(),
            )
        )
        undo.pop_all()
    return replica
