"""The errors that end a learner or an observer, and how any script exits with their codes."""

import inspect
import io
import sys
import traceback
from collections.abc import Iterable
from types import FrameType, TracebackType

from atoll_protos.errors import SpecError
from atoll_protos.exits import TERMINATED, ExitCode

OURS = frozenset({"atoll", "atoll_integrations", "atoll_protos", "atoll_worker"})


class LearnerError(RuntimeError):
    """This process must end; the job continues without it.

    `exit_code`, with which a script exits that lets it pass: 65 another model or run, 75 try again,
    77 another process has taken the slot.
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

    A SpecError is the user's to mend: one line without traceback, unless the user has a hook.
    """

    def __init__(self) -> None:
        self.previous = sys.excepthook
        self.error: BaseException | None = None  # the exception that ends the process

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.error = error
        known = isinstance(error, SpecError)
        if not known or not shows_traceback_alone(self.previous):
            self.previous(kind, error, trace)
        if known:
            place = _place(reversed([*traceback.walk_tb(trace)]))
            sys.stderr.write(f"SpecError: {error}{place}\n")
            say_collected()
            raise SystemExit(int(ExitCode.BAD_INPUT))
        if isinstance(error, LearnerError):
            say_collected()
            raise SystemExit(error.exit_code)


def shows_traceback_alone(hook: object) -> bool:
    """Whether a hook is Python's, or torch.distributed's around it, which only adds the rank."""
    while inspect.isfunction(hook) and hook.__module__.startswith("torch.distributed."):
        hook = inspect.getclosurevars(hook).nonlocals.get("old_hook")
    return hook is sys.__excepthook__


def say_collected() -> None:
    """torch.distributed's hook collects what others print, and loses it where one exits."""
    if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
        sys.__stderr__.write(sys.stderr.getvalue())
        sys.__stderr__.flush()


def place_of_caller() -> str:
    """Return the line of the user's code that is being run, as ` (FILE:LINE)`."""
    return _place(traceback.walk_stack(None))


def _place(frames: Iterable[tuple[FrameType, int]]) -> str:
    for frame, line in frames:
        file, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        ours = package.partition(".")[0] in OURS or "site-packages" in file
        if not ours and not file.startswith("<"):
            return f" ({file}:{line})"
    return ""


def install_excepthook() -> None:
    if not isinstance(sys.excepthook, ExitCodes):
        sys.excepthook = ExitCodes()


def uncaught() -> BaseException | None:
    hook = sys.excepthook
    return hook.error if isinstance(hook, ExitCodes) else None
