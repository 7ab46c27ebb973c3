"""Faults that a plan makes while a run trains (`atoll run --chaos-plan`).

    faults:
      - {at: 30, kill: shard-1}
      - {at: 60, pause: us-east-0, for: 20}
      - {at: 120, cut: [eu-west-0, shard-1], for: 20}

Times are seconds, and count from the first pass in which all train. chaos.jsonl has a line for each
fault.

Learners whose link to a shard a plan cuts dial a proxy in a thread of `atoll run`, beside the
shard's Unix socket; while the link is cut its connections stay open, and what was sent waits, as
when packets are lost and sent again.
"""

import asyncio
import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pydantic
from pydantic import Field

from atoll_operator.api.job import parsing
from atoll_operator.api.job.fields import SECONDS_MAX, Model, meant
from atoll_operator.api.job.parsing import first_error
from atoll_operator.local.child import Child
from atoll_operator.local.process_plan import Planned, shard_process
from atoll_operator.local.run_files import CHAOS_FILE, Appended, Files
from atoll_operator.local.supervisor import Supervisor
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.network.addresses import UNIX, endpoints_of

CHUNK_BYTES: Final = 64 << 10
LOOK_SECONDS: Final = 0.02  # whether a link that is cut works again


class FaultKind(StrEnum):
    """A fault, as a plan and chaos.jsonl write it."""

    KILL = "kill"
    PAUSE = "pause"
    CUT = "cut"


class FaultEntry(Model):
    """One entry of `faults`, as it is written."""

    at: float = Field(ge=0, le=SECONDS_MAX)
    for_: float = Field(default=0.0, ge=0, le=SECONDS_MAX, alias="for")
    kill: str = ""
    pause: str = ""
    cut: list[str] = Field(default=[], min_length=2, max_length=2)


class WrittenPlan(Model):
    """The plan as it is written."""

    faults: list[FaultEntry] = Field(min_length=1, max_length=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault that is to be made; `shard` is the other end of a link, `target` its learner."""

    at: float
    kind: FaultKind
    target: str
    shard: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        link = f" - {self.shard}" if self.shard else ""
        return f"{self.kind} {self.target}{link}" + (f", {self.seconds:g} s" * bool(self.seconds))


# ---------------------------------------------------------------- the plan


def read_plan(text: str, slots: Sequence[str], shards: Sequence[str]) -> list[Fault]:
    """Read the faults of a job with these learners and shards, by time.

    Raises SpecError, which names the field and the remedy.
    """
    document = parsing.yaml_document(text, "plan")
    try:
        written = WrittenPlan.model_validate(document)
    except pydantic.ValidationError as error:
        raise first_error(error, "plan", WrittenPlan) from error
    faults = [
        _fault(f"plan.faults[{number}]", entry, slots, shards)
        for number, entry in enumerate(written.faults)
    ]
    return sorted(faults, key=lambda fault: fault.at)


def _fault(place: str, entry: FaultEntry, slots: Sequence[str], shards: Sequence[str]) -> Fault:
    kinds = [kind for kind in FaultKind if kind in entry.model_fields_set]
    if len(kinds) != 1:
        names = ", ".join(kinds) or "no fault"
        raise SpecError(place, f"names {names}", f"give one of {', '.join(FaultKind)}")
    (kind,) = kinds
    if (kind is FaultKind.KILL) == bool(entry.for_):
        problem, remedy = ("means nothing beside kill", "remove it")
        if not entry.for_:
            problem, remedy = "is missing", "add for: 20"
        raise SpecError(f"{place}.for", problem, remedy)
    given = entry.cut if kind is FaultKind.CUT else [getattr(entry, kind)]
    known = (slots, shards) if kind is FaultKind.CUT else ([*slots, *shards],)
    for name, those in zip(given, known, strict=True):
        if name not in those:
            raise SpecError(f"{place}.{kind}", f"this job has no {name}", meant(name, those))
    target, shard = [*given, ""][:2]
    return Fault(at=entry.at, kind=kind, target=target, shard=shard, seconds=entry.for_)


# ---------------------------------------------------------------- processes


class NotMadeError(Exception):
    """A fault could not be made; the text says why."""


@contextlib.contextmanager
def paused(children: Sequence[Child]) -> Iterator[None]:
    """Stop processes of a learner or shard, and all that these have started, while inside.

    Each has a handle: another process that gets its number later is not meant.
    """
    with contextlib.ExitStack() as handles:
        stopped: list[int] = []
        for pid in _processes_of(children):
            with contextlib.suppress(ProcessLookupError):
                stopped.append(os.pidfd_open(pid))
                handles.callback(os.close, stopped[-1])
        if not stopped:
            raise NotMadeError("it did not run")
        try:
            _send(stopped, signal.SIGSTOP)
            yield
        finally:
            _send(stopped, signal.SIGCONT)


def _processes_of(children: Sequence[Child]) -> list[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    pids = [child.process.pid for child in children if child.process is not None]
    for pid in pids:  # it grows meanwhile
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def _send(handles: Sequence[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


# ---------------------------------------------------------------- links


@dataclass(slots=True, kw_only=True)
class ProxiedLink:
    """Between a learner, which dials `proxied`, and a shard; while it is cut nothing gets through.

    A link may be cut more than once at a time.
    """

    endpoint: str
    proxied: str
    cuts: int = 0  # another thread changes it

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.cuts += 1
        try:
            yield
        finally:
            self.cuts -= 1

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Carry the bytes of one connection."""
        try:
            shard, to_shard = await asyncio.open_unix_connection(self.endpoint.removeprefix(UNIX))
        except OSError:
            to_client.transport.abort()
            return
        ways = [
            asyncio.create_task(self._carry(client, to_shard)),
            asyncio.create_task(self._carry(shard, to_client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the run is over: nothing to report
            return
        finally:
            for way in ways:
                way.cancel()
            for writer in (to_client, to_shard):
                writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one side ends."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                while self.cuts:  # noqa: ASYNC110 - another thread changes it
                    await asyncio.sleep(LOOK_SECONDS)
                writer.write(data)
                await writer.drain()


class Links:
    """The proxied links of a run, by learner and shard."""

    def __init__(self, faults: Iterable[Fault], endpoints: Sequence[str]) -> None:
        by_shard = {shard_process(number): endpoint for number, endpoint in enumerate(endpoints)}
        cuts = [(fault.target, fault.shard) for fault in faults if fault.kind is FaultKind.CUT]
        self._links = {
            (slot, shard): ProxiedLink(
                endpoint=by_shard[shard], proxied=f"{by_shard[shard]}-{number}"
            )
            for number, (slot, shard) in enumerate(dict.fromkeys(cuts))
        }

    @contextlib.contextmanager
    def open(self) -> Iterator["Links"]:
        """Run the proxy inside; there is none where the plan cuts no links."""
        if not self._links:
            yield self
            return
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        servers = asyncio.run_coroutine_threadsafe(self._listen(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(_close(servers), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def of(self, learner: str, shard: str) -> ProxiedLink:
        return self._links[learner, shard]

    def through(self, planned: Sequence[Planned]) -> list[Planned]:
        """Return the processes of a run, of which learners dial the proxy where they have one."""
        return [
            replace(process, env={**process.env, **self._endpoints(process)}) for process in planned
        ]

    def _endpoints(self, planned: Planned) -> dict[str, str]:
        proxied = {
            link.endpoint: link.proxied
            for (slot, _), link in self._links.items()
            if slot == planned.whole
        }
        endpoints = endpoints_of(planned.env[Env.ENDPOINTS])
        return {Env.ENDPOINTS: ",".join(proxied.get(endpoint, endpoint) for endpoint in endpoints)}

    async def _listen(self) -> list[asyncio.Server]:
        return [
            await asyncio.start_unix_server(link.serve, link.proxied.removeprefix(UNIX))
            for link in self._links.values()
        ]


async def _close(servers: Sequence[asyncio.Server]) -> None:
    for server in servers:
        server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- during a run


@dataclass(slots=True, kw_only=True)
class Chaos:
    """The faults of a run; `waiting` are sorted by time.

    They begin in a pass of the run, and end in threads of their own: while a shard stands still, a
    pass takes longer than some faults.
    """

    waiting: list[Fault]
    supervisor: Supervisor
    links: Links
    files: Files
    began: float | None = None  # when all trained, in monotonic seconds
    _over: threading.Event = field(default_factory=threading.Event)
    _lasting: list[threading.Thread] = field(default_factory=list)

    def advance(self, now: float, *, all_train: bool) -> None:
        """Begin what is due; `now` is in monotonic seconds."""
        if self.began is None and all_train:
            self.began = now
        while self.began is not None and self.waiting and now >= self.began + self.waiting[0].at:
            self._begin(self.waiting.pop(0))

    def seconds_left(self, now: float) -> float:
        """Until the next one is due."""
        if self.began is None or not self.waiting:
            return math.inf
        return max(0.0, self.began + self.waiting[0].at - now)

    def end(self) -> None:
        """Take back what lasts, before the processes of the run are stopped."""
        if self.waiting:
            self.files.say(f"chaos: the run is over before {len(self.waiting)} of the faults")
        self.waiting.clear()
        self._over.set()
        for thread in self._lasting:
            thread.join()

    def _begin(self, fault: Fault) -> None:
        self.files.say(f"chaos: {fault}")
        target = [fault.target, fault.shard] if fault.shard else fault.target
        line = {"fault": fault.kind, "target": target, "planned": fault.at}
        line |= {"seconds": fault.seconds, "began": time.time()}
        undo = contextlib.ExitStack()
        try:
            self._make(fault, undo)
        except (NotMadeError, OSError) as error:
            self.files.say(f"chaos: {fault} is not made: {error}")
            line["not_made"] = str(error)
        if "not_made" in line or not fault.seconds:
            self._note(line)
            return
        thread = threading.Thread(target=self._last, args=(line, undo), daemon=True)
        self._lasting.append(thread)
        thread.start()

    def _last(self, line: dict[str, Any], undo: contextlib.ExitStack) -> None:
        self._over.wait(line["seconds"])
        undo.close()
        self._note(line)

    def _note(self, line: dict[str, Any]) -> None:
        now = time.time()
        file = Appended(self.files.out / CHAOS_FILE)
        file.add(json.dumps({**line, "ended": now, "time": now}).encode() + b"\n")
        file.flush()

    def _make(self, fault: Fault, undo: contextlib.ExitStack) -> None:
        if fault.kind is FaultKind.CUT:
            undo.enter_context(self.links.of(fault.target, fault.shard).cut())
            return
        children = self.supervisor.meant(fault.target)
        if fault.kind is FaultKind.PAUSE:
            undo.enter_context(paused(children))
            return
        running = [child.process for child in children if child.process is not None]
        if not running:
            raise NotMadeError("it did not run")
        self.supervisor.kill(children[0])
        for process in running:
            process.wait()
