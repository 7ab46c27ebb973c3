"""`atoll run` in the background, so that a test can do things to it meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from atoll_operator.local import run_manifest
from atoll_operator.local.run_files import read_lines
from local.command import LOG_CHARACTERS
from local.leftovers import lives

SECONDS_MAX = 600.0
LOOK_SECONDS = 0.1

T = TypeVar("T")


@dataclass(slots=True)
class Running:
    """One `atoll run` and its folder."""

    process: subprocess.Popen[str]
    out: Path

    def until(self, look: Callable[[], T], what: str) -> T:
        """What `look` returns once it is true; fails when it does not come or the run ends."""
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := look()):
            assert time.monotonic() < deadline, f"{what} does not come\n{self.logs()}"
            assert self.process.poll() is None, f"ended before {what}\n{self.logs()}"
            time.sleep(LOOK_SECONDS)
        return found

    def commits(self, shard: int) -> list[dict[str, Any]]:
        lines = read_lines(self.out / "syncer" / f"{shard}.tape.jsonl")
        return [line for line in lines if line.get("event") == "commit"]

    def row(self, name: str | int) -> dict[str, Any]:
        """The line of processes.json with this slot or shard."""
        rows = json.loads((self.out / "processes.json").read_text())
        return next(row for row in rows if name in (row.get("slot"), row.get("shard")))

    def kill(self, *names: str | int, then: Callable[[], None] | None = None) -> None:
        """kill -9 in one moment, then do something, and wait until all have been started again.

        `atoll run` stands still meanwhile: what it starts again finds what `then` has done.
        """
        rows = {name: self.row(name) for name in names}
        self.process.send_signal(signal.SIGSTOP)
        try:
            for row in rows.values():
                os.kill(row["pid"], signal.SIGKILL)
            if then is not None:
                self.until(lambda: not any(lives(row["pid"]) for row in rows.values()), "their end")
                then()
        finally:
            self.process.send_signal(signal.SIGCONT)

        def again() -> bool:
            now = [(self.row(name), row["restarts"]) for name, row in rows.items()]
            return all(new["restarts"] > before and new["pid"] is not None for new, before in now)

        self.until(again, f"restart of {names}")

    def edit(self, *changes: str) -> None:
        """As `atoll edit` does it, in this process."""
        run_manifest.edit(self.out, changes)

    def finish(self, signal_number: int | None = None) -> tuple[int, str]:
        if signal_number is not None:
            self.process.send_signal(signal_number)
        _, stderr = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, stderr

    def logs(self) -> str:
        """The last words of every process."""
        files = sorted(self.out.glob("logs/*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-LOG_CHARACTERS:]}" for log in files)


@contextmanager
def running(job: Path, out: Path, *arguments: str) -> Iterator[Running]:
    """Start it; what still runs at the end is interrupted."""
    atoll = Path(sys.executable).with_name("atoll")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it would be inherited
    with subprocess.Popen(
        [atoll, "run", job, "--out", out, "--output", "lines", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        run = Running(process, out)
        try:
            yield run
            if process.poll() is None:
                run.finish(signal.SIGINT)
        finally:
            process.kill()
