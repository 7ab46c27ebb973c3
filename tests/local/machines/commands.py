"""`atoll serve` and `atoll join` as people start them, each with a folder of its own."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from atoll_operator.local.startable import free_ports
from local.background import LOOK_SECONDS, SECONDS_MAX, Running
from local.command import ATOLL, LOG_CHARACTERS

LINE = re.compile(r"ATOLL_TOKEN=(\S+) atoll join (\S+)")


@dataclass(slots=True)
class Machine(Running):
    """One machine: its process, its folder, and what it has written."""

    log: Path = field(default_factory=Path)

    def text(self) -> str:
        return self.log.read_text()

    def says(self, words: str) -> str:
        """What it has written, once `words` are in it."""
        self.until(lambda: words in self.text(), f"{words!r}")
        return self.text()

    def end(self, seconds_max: float = SECONDS_MAX) -> int:
        """Its exit code."""
        deadline = time.monotonic() + seconds_max
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end\n{self.logs()}"
            time.sleep(LOOK_SECONDS)
        return self.process.returncode

    def logs(self) -> str:
        # Not super(): a dataclass with slots is another class than the one written here.
        return f"{self.text()[-LOG_CHARACTERS:]}\n{Running.logs(self)}"


class Commands:
    """Machines of one test on this one; all are stopped when it ends."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack, self._count = folder, stack, 0
        (self.port,) = free_ports(1)

    def atoll(self, out: Path, *words: object, within: Sequence[str] = ()) -> Machine:
        """`within`: a command that starts it somewhere else, as `Space.enter`."""
        self._count += 1
        log = self.folder / f"{self._count}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*within, ATOLL, *map(str, words)],
                stdout=file,
                stderr=file,
                cwd=self.folder,
                text=True,
            )
        self._stack.callback(_stop, process)
        return Machine(process, out, log)

    def serve(self, job: Path, *words: object) -> Machine:
        out = self.folder / "served"
        listen = ("--listen", f"127.0.0.1:{self.port}", "--output", "lines")
        return self.atoll(out, "serve", job, "--out", out, *listen, *words)

    def join(self, line: str, name: str, *words: object, within: Sequence[str] = ()) -> Machine:
        """`line` is what was printed for other machines."""
        state = self.folder / name
        given = LINE.search(line)
        start = ["join", given[2] if given else f"127.0.0.1:{self.port}"]
        start += ["--token", given[1]] if given else []
        own = ("--name", name, "--state", state)
        return self.atoll(state, *start, *own, *words, within=within)


@contextmanager
def commands_in(folder: Path) -> Iterator[Commands]:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it would be inherited
    with ExitStack() as stack:
        yield Commands(folder, stack)


def _stop(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(SECONDS_MAX)
        finally:
            process.kill()
