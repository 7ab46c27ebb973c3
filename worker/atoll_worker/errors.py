"""What can end a learner or an observer, with the exit code that says so."""

from atoll_protos.names import ExitCode


class LearnerError(RuntimeError):
    """The job goes on without this process; `exit_code` is what it should exit with.

    `atoll-worker` does so; a script of its own does `sys.exit(error.exit_code)`.
    """

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class TransportLostError(LearnerError):
    """The transport process has died: start this process again, it recovers from the syncer."""

    def __init__(self, reason: str) -> None:
        super().__init__(ExitCode.TRY_AGAIN, reason)
