"""SIGTERM as an orderly end: SystemExit(0), but never in the middle of the link's work.

Kubernetes sends SIGTERM before it kills a pod. It becomes SystemExit(0) in the user's loop, and the
exit of the Learner's `with` sends the Leave with its reason. Inside `deferred()`, while a message
is half written or a capture half copied, it is only noted, and raised when the outermost one ends.

A scheduler may send it several times within milliseconds, as Slurm does. The first one alone
interrupts: another would cut short what the first has begun, up to the Leave itself.

Once the job is *over* for this process the first SIGTERM changes nothing any more: pods of a
complete job are removed while the first slot's script may still save the model. Whoever sent it
kills the process after its grace. One that comes REPEAT_SECONDS later ends the process at once.

Kubernetes keeps the termination message of a container, and the operator reads it. Of one that an
error has ended it takes the end of the log, which says more than we could.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atoll_protos.exits import FINISHED, TERMINATED, returned_early

REPEAT_SECONDS: Final = 1.0  # what comes earlier is the same request


@dataclass(slots=True)
class Termination:
    """SIGTERM's handler of a Learner or Observer: in the main thread, unless the user has one."""

    requested: bool = False  # SIGTERM has come
    over: bool = False  # the final values are in the model
    ignored_at: float | None = None  # monotonic seconds: when SIGTERM came first after that
    depth: int = 0  # of nested deferred() blocks
    installed: bool = False

    def install(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if not main:
            return
        handler = signal.getsignal(signal.SIGTERM)
        earlier = getattr(handler, "__self__", None)  # of a learner that was in this process
        if handler is signal.SIG_DFL or (isinstance(earlier, Termination) and earlier.over):
            signal.signal(signal.SIGTERM, self._handle)
            self.installed = True

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """While the process leaves, another SIGTERM changes nothing; then the default is back.

        It is not where the job is over.
        """
        if self.installed:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            yield
        finally:
            if self.installed:
                after = self._handle if self.over else signal.SIG_DFL
                signal.signal(signal.SIGTERM, after)
                self.installed = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
        if not self.depth:
            self.check()

    def check(self) -> None:
        if self.requested:
            raise SystemExit(0)

    def _handle(self, *_: object) -> None:
        if self.over:
            self._ignore_once(time.monotonic())
            return
        told, self.requested = self.requested, True
        if not (told or self.depth):
            raise SystemExit(0)

    def _ignore_once(self, now: float) -> None:
        if self.ignored_at is None:
            self.ignored_at = now
        elif now - self.ignored_at >= REPEAT_SECONDS:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)


TERMINATION_LOG: Final = Path("/dev/termination-log")  # a container's last words, in Kubernetes
ALL_DONE, LOOP_ENDED = IN_ORDER = ("finished", "loop ended")  # why a script leaves without error


def say(reason: str, tick: int, total_ticks: int | None) -> None:
    """Leave the last words of a process that leaves for this reason; outside of a pod nothing."""
    early = returned_early(tick, total_ticks)
    words = {ALL_DONE: FINISHED, TERMINATED: TERMINATED, LOOP_ENDED: early}
    if TERMINATION_LOG.exists():
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(words.get(reason, ""))
