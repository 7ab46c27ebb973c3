"""The errors that end a learner or an observer, each with the exit code of the process."""

from atoll_protos.exits import ExitCode


class LearnerError(RuntimeError):
    """This process must end; the job goes on without it.

    `exit_code` is what the process should exit with, so that the operator knows whether to
    start it again: 65 another model or run, 75 try again, 77 another process has taken the slot.
    `atoll-worker` exits with it; a script that is started directly calls
    `sys.exit(error.exit_code)`.
    """

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class TransportLostError(LearnerError):
    """The transport process has died. Start this process again: it recovers from the syncer."""

    def __init__(self, reason: str) -> None:
        super().__init__(ExitCode.TRY_AGAIN, reason)
