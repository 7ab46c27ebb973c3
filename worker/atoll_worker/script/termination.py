"""SIGTERM as an orderly end: SystemExit(0), but never in the middle of the link's work.

Kubernetes sends SIGTERM before it kills a pod. It becomes SystemExit(0) in the user's loop, and the
exit of the Learner's `with` sends the Leave with its reason. Inside `deferred()`, while a message
is half written or a capture half copied, it is only noted, and raised when the outermost one ends.

A scheduler may send it several times within milliseconds, as Slurm does. The first one alone
interrupts: another would cut short what the first has begun, up to the Leave itself.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Termination:
    """SIGTERM's handler of a Learner or Observer: in the main thread, unless the user has one."""

    requested: bool = False  # SIGTERM has come
    depth: int = 0  # of nested deferred() blocks
    installed: bool = False

    def install(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self.installed = True

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """While the process leaves, another SIGTERM changes nothing; then the default is back."""
        if self.installed:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            yield
        finally:
            if self.installed:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
        told, self.requested = self.requested, True
        if not (told or self.depth):
            raise SystemExit(0)
