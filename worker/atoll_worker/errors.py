"""The errors that end a learner or an observer, each with the exit code of the process.

Python ends a script with exit code 1 for every exception. What has started a learner must know
more: whether another start can help. `install_excepthook` makes any script exit with the codes of
docs/operating.md, as the runner `atoll-worker` does.
"""

import inspect
import io
import sys
import traceback
from types import FrameType, TracebackType

from atoll_protos.errors import SpecError
from atoll_protos.exits import TERMINATED, ExitCode

OURS = frozenset({"atoll", "atoll_protos", "atoll_worker"})


class LearnerError(RuntimeError):
    """This process must end; the job continues without it.

    `exit_code` is what the process exits with, so that the operator knows whether to start it
    again: 65 another model or run, 75 try again, 77 another process has taken the slot. A script
    that lets the error pass exits with it by itself.
    """

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class TransportLostError(LearnerError):
    """The transport process has died. Start this process again: it recovers from the syncer."""

    def __init__(self, reason: str) -> None:
        super().__init__(ExitCode.TRY_AGAIN, reason)


class ToldToEndError(LearnerError):
    """Another rank of this learner was told to end, and all its ranks have to start again."""


def reason_of(error: BaseException) -> str:
    """Why a process leaves, in words that the shards log and the run folder shows."""
    match error:
        case SystemExit(code=0) | ToldToEndError():
            return TERMINATED
        case KeyboardInterrupt():
            return "interrupted"
        case _:
            return f"{type(error).__name__}: {error}"


class ExitCodes:
    """The excepthook of a process: SpecError and LearnerError end it with their own exit codes.

    A SpecError is the user's to mend, so it is said in one line; every other error keeps its
    traceback. The hook that was there before is called too, unless it is Python's own, under the
    one of torch.distributed or not, and the error is a SpecError.
    """

    def __init__(self) -> None:
        self.previous = sys.excepthook
        self.error: BaseException | None = None  # the exception that ends the process

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Say the error; exit with its code if it has one."""
        self.error = error
        known = isinstance(error, SpecError)
        if not known or not shows_traceback_alone(self.previous):
            self.previous(kind, error, trace)
        if known:
            sys.stderr.write(f"SpecError: {error}{place_of(trace)}\n")
            say_collected()
            raise SystemExit(int(ExitCode.BAD_INPUT))
        if isinstance(error, LearnerError):
            say_collected()
            raise SystemExit(error.exit_code)


def shows_traceback_alone(hook: object) -> bool:
    """Whether an excepthook is Python's own, or the one that torch.distributed has put around it.

    torch's only writes the rank before each line.
    """
    while inspect.isfunction(hook) and hook.__module__.startswith("torch.distributed."):
        hook = inspect.getclosurevars(hook).nonlocals.get("old_hook")
    return hook is sys.__excepthook__


def say_collected() -> None:
    """Write what standard error holds back to the real one.

    The excepthook of torch.distributed collects what the hooks before it print, to put the rank
    before each line, and loses it where one of them ends the process.
    """
    if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
        sys.__stderr__.write(sys.stderr.getvalue())
        sys.__stderr__.flush()


def place_of(trace: TracebackType | None) -> str:
    """Where the user's code was, as ` (FILE:LINE)`; empty if that is no file."""
    found = ""
    for frame, line in traceback.walk_tb(trace):
        if _is_users(frame):
            found = f" ({frame.f_code.co_filename}:{line})"
    return found


def place_of_caller() -> str:
    """The line of the user's code that is being run, as `place_of` says it."""
    for frame, line in traceback.walk_stack(None):
        if _is_users(frame):
            return f" ({frame.f_code.co_filename}:{line})"
    return ""


def _is_users(frame: FrameType) -> bool:
    """Whether a frame is of a file that is neither ours nor a library's."""
    file, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    ours = package.partition(".")[0] in OURS or "site-packages" in file
    return not ours and not file.startswith("<")


def install_excepthook() -> None:
    """Install `ExitCodes` in this process, once."""
    if not isinstance(sys.excepthook, ExitCodes):
        sys.excepthook = ExitCodes()


def uncaught() -> BaseException | None:
    """The exception that ends the process, once Python has given it to the hook."""
    hook = sys.excepthook
    return hook.error if isinstance(hook, ExitCodes) else None
