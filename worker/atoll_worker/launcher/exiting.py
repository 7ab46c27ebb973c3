"""How the launcher ends: with a code, or by the signal that has ended its process.

Python is not shut down: a thread of torch's agent that comes back from torch's own code meanwhile
ends the whole process by SIGABRT, and a learner that has left in order would have failed.
"""

import contextlib
import os
import resource
import signal
import sys
from typing import NoReturn


def end_as(code: int) -> NoReturn:
    """End with a code; for a signal (negative) by it, without a core.

    The first process of a container is not ended by its own signals; it exits with 128 + N.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)
