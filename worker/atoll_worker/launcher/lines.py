"""What the processes of a learner print, line by line, with the rank before each.

Each process writes into pipes of its own, one for its standard output and one for its errors, and
one thread passes on whole lines, so that two processes never share one. A learner of one process
keeps the launcher's own output.

Which process fails first decides what a reader wants to know, but the others print their own
errors after it. `say_again` repeats its last lines at the end, where people and programs look for
the reason. torch writes `[rank1]: ` before some lines itself; nothing is said twice.
"""

import contextlib
import os
import re
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

END = re.compile(rb"(\r\n|\n|\r(?!\Z))")  # a \r at the end may have its \n to come
LINE_BYTES_MAX: Final = 1 << 16  # of one that does not end
QUIET_SECONDS: Final = 0.5  # processes that a rank has left behind may hold its pipes open
KEPT_LINES: Final = 60  # of each rank, to be said again

Write = Callable[[int, bytes], None]  # to descriptor 1 or 2 of this process


def write_through(descriptor: int, data: bytes) -> None:
    """Write to standard output or standard error at once; nothing if nobody reads it any more."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]


@dataclass(slots=True)
class Source:
    """One pipe: whose it is, where its lines go, and the begun line at its end."""

    rank: int
    descriptor: int
    rest: bytes = b""


@dataclass(slots=True)
class Lines:
    """The pipes of the processes of one start."""

    write: Write = write_through
    write_ends: list[int] = field(default_factory=list)
    last: dict[int, deque[bytes]] = field(default_factory=dict)
    newest: int | None = None  # the rank that wrote the last line
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    ending: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def open(self, rank: int, descriptor: int) -> str:
        """The path of a new pipe for what this rank writes to standard output (1) or errors (2)."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        self.selector.register(read, selectors.EVENT_READ, Source(rank, descriptor))
        self.write_ends.append(write)
        self.last.setdefault(rank, deque(maxlen=KEPT_LINES))
        return f"/proc/self/fd/{write}"

    def start(self) -> None:
        """Begin to pass lines on, once the processes have their ends of the pipes."""
        for write in self.write_ends:
            os.close(write)
        self.write_ends.clear()
        self.thread = threading.Thread(target=self._run, name="atoll-lines", daemon=True)
        self.thread.start()

    def finish(self) -> None:
        """Pass on what is left of processes that have ended; a second time it does nothing."""
        if self.ending.is_set():
            return
        self.ending.set()
        if self.thread is not None:
            self.thread.join()
        for write in self.write_ends:
            os.close(write)
        self.write_ends.clear()
        for key in list(self.selector.get_map().values()):
            self._close(key)
        self.selector.close()

    def say_again(self, rank: int, head: str) -> None:
        """Repeat the last lines of a rank under this line, unless the last lines are its own."""
        lines = self.last.get(rank)
        if lines and self.newest != rank:
            self.write(2, b"".join([f"{head}\n".encode(), *lines]))

    def _run(self) -> None:
        while self.selector.get_map():
            ready = self.selector.select(QUIET_SECONDS)
            if not ready and self.ending.is_set():
                return
            for key, _ in ready:
                self._read(key)

    def _read(self, key: selectors.SelectorKey) -> None:
        source: Source = key.data
        try:
            data = os.read(key.fd, LINE_BYTES_MAX)
        except BlockingIOError:
            return
        if not data:
            self._close(key)
            return
        *ended, source.rest = END.split(source.rest + data)
        whole = [line + end for line, end in zip(ended[::2], ended[1::2], strict=True)]
        if len(source.rest) > LINE_BYTES_MAX:
            whole.append(source.rest + b"\n")
            source.rest = b""
        self._pass_on(source, whole)

    def _close(self, key: selectors.SelectorKey) -> None:
        source: Source = key.data
        if source.rest:
            self._pass_on(source, [source.rest.rstrip(b"\r") + b"\n"])
        self.selector.unregister(key.fd)
        os.close(key.fd)

    def _pass_on(self, source: Source, lines: list[bytes]) -> None:
        if not lines:
            return
        name = b"[rank%d]: " % source.rank
        told = [line if line.startswith(name) else name + line for line in lines]
        self.last[source.rank].extend(told)
        self.newest = source.rank
        self.write(source.descriptor, b"".join(told))


class OfRanks(LogsSpecs):
    """Tells the agent of torchrun where its processes write: into `lines`, where there are several.

    The agent asks before each start of its processes.
    """

    def __init__(self, write: Write = write_through) -> None:
        super().__init__()
        self.write = write
        self.lines = Lines(write)

    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """The places for the processes with these environments, by local rank."""
        self.lines.finish()
        self.lines = Lines(self.write)
        alone = all(env["WORLD_SIZE"] == "1" for env in envs.values())
        places: list[dict[int, str]] = [
            {
                local: "" if alone else self.lines.open(int(env["RANK"]), descriptor)
                for local, env in envs.items()
            }
            for descriptor in (1, 2)
        ]
        return LogsDest(places[0], places[1], error_files=dict.fromkeys(envs, ""))

    @property
    def root_log_dir(self) -> str:
        """Nothing is written to files."""
        return ""
