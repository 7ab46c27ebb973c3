"""SIGTERM as an orderly end: SystemExit(0), but never in the middle of the link's work."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Termination:
    """Installed only in the main thread and only in place of the default: a user's handler stays.

    The SystemExit leaves through the `with` of the Learner or Observer, which then says Leave.
    """

    requested: bool = False
    depth: int = 0
    installed: bool = False

    def install(self) -> None:
        """Take SIGTERM if nobody else has."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self.installed = True

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """The last part: a second SIGTERM changes nothing; then the signal is given back."""
        if self.installed:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            yield
        finally:
            if self.installed:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self.installed = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """A part that a signal must not cut short; its end, or `check`, obeys it."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
        if not self.depth:
            self.check()

    def check(self) -> None:
        """Raise SystemExit(0) if SIGTERM has come."""
        if self.requested:
            raise SystemExit(0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.requested = True
        if not self.depth:
            raise SystemExit(0)
