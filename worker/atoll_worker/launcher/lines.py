"""What the processes of a learner print, line by line, with the rank before each.

Each process writes into pipes of its own, and a thread of each passes on whole lines. (torchrun's
own tee needs a file for each process, which grows as long as it trains.) A learner of one process
keeps the launcher's output. torch writes `[rank1]: ` before some lines itself; none has it twice.
"""

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

LINE_CHARACTERS_MAX: Final = 1 << 16  # of one that does not end
QUIET_SECONDS: Final = 0.5  # processes that a rank has left behind may hold its pipes open
KEPT_LINES: Final = 60  # of each rank, to be printed again

Write = Callable[[int, bytes], None]  # to descriptor 1 or 2 of this process


def write_through(descriptor: int, data: bytes) -> None:
    """Write to standard output or standard error at once; nothing if nobody reads it any more."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]


class Lines(LogsSpecs):
    """The pipes of the processes of one start; the agent of torchrun asks for them before each."""

    def __init__(self, write: Write = write_through) -> None:
        super().__init__()
        self.write = write
        self.lock = threading.Lock()
        self.write_ends: list[int] = []
        self.threads: list[threading.Thread] = []
        self.last: dict[int, deque[bytes]] = {}
        self.newest: int | None = None  # the rank that wrote the last line

    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """Where the processes of the next start write."""
        self.finish()
        self.last, self.newest = {}, None
        alone = all(env["WORLD_SIZE"] == "1" for env in envs.values())
        places: list[dict[int, str]] = [
            {
                local: "" if alone else self.open(int(env["RANK"]), descriptor)
                for local, env in envs.items()
            }
            for descriptor in (1, 2)
        ]
        return LogsDest(places[0], places[1], error_files=dict.fromkeys(envs, ""))

    @property
    def root_log_dir(self) -> str:
        return ""

    def open(self, rank: int, descriptor: int) -> str:
        """The path of a new pipe for what this rank writes to standard output (1) or errors (2)."""
        read, write = os.pipe()
        self.write_ends.append(write)
        self.last.setdefault(rank, deque(maxlen=KEPT_LINES))
        run = partial(self._pass_on, rank, descriptor, read)
        self.threads.append(threading.Thread(target=run, name="atoll-lines", daemon=True))
        return f"/proc/self/fd/{write}"

    def start(self) -> None:
        """Begin to pass lines on, once the processes have their ends of the pipes."""
        for write in self.write_ends:
            os.close(write)
        self.write_ends.clear()
        for thread in self.threads:
            thread.start()

    def finish(self) -> None:
        for write in self.write_ends:  # the processes did not start
            os.close(write)
        self.write_ends.clear()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(QUIET_SECONDS)
        self.threads.clear()

    def say_again(self, rank: int, head: str) -> None:
        """Repeat the last lines of a rank at the end, where people look, unless they are there."""
        lines = self.last.get(rank)
        if lines and self.newest != rank:
            self.write(2, b"".join([f"{head}\n".encode(), *lines]))

    def _pass_on(self, rank: int, descriptor: int, read: int) -> None:
        name = f"[rank{rank}]: "
        with open(read, newline="", errors="surrogateescape") as lines:
            while line := lines.readline(LINE_CHARACTERS_MAX):
                named = line if line.startswith(name) else name + line
                whole = named if named.endswith(("\n", "\r")) else named + "\n"
                written = whole.encode(errors="surrogateescape")
                with self.lock:
                    self.last[rank].append(written)
                    self.newest = rank
                    self.write(descriptor, written)
