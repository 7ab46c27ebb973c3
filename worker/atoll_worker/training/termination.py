"""SIGTERM as an orderly end: SystemExit(0), but never in the middle of the link's work.

Kubernetes sends SIGTERM before it kills a pod. A learner should then leave the job with a reason:
its shards stop counting on it at once, and its telemetry says what became of its last tokens. So
SIGTERM becomes SystemExit(0) in the user's loop. It passes through the `with` of the Learner, whose
exit sends the Leave.

If the exception were raised while a message is half written or a capture half copied, the link
would be left in pieces. Those parts of the code run inside `deferred()`: a signal that comes then
is only noted, and the exception is raised at the end of the outermost one, or at a `check`.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Termination:
    """The handler of SIGTERM of one Learner or Observer.

    It is installed only in the main thread, where Python runs handlers, and only in place of the
    default action: a handler that the user has set stays, and then SIGTERM is theirs to treat.
    """

    requested: bool = False  # SIGTERM has come
    depth: int = 0  # of nested deferred() blocks
    installed: bool = False

    def install(self) -> None:
        """Take SIGTERM, unless another handler is set."""
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
        """A block that SIGTERM does not interrupt; SystemExit comes when the outermost one ends."""
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
