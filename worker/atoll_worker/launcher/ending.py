"""How the launcher ends: with a code, or by the signal that has ended its process."""

import os
import resource
import signal
import sys


def end_as(code: int) -> int:
    """The exit code for a code; for a signal (negative) this process ends by it, without a core.

    The first process of a container is not ended by its own signals; it exits with 128 + N.
    """
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code
