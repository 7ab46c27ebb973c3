"""Commands that start the processes of a learner: which do so already, and how others come to.

A learner of several processes or hosts runs under `atoll-worker launch -- COMMAND`. A command that
is a launcher itself stays as it is: two of them would each start all processes.
"""

import os
import re
from collections.abc import Sequence
from typing import Final

LAUNCHER: Final = ("atoll-worker", "launch")
MODULE: Final = ("-m", "atoll_worker", "launch")  # of a Python: the same
DASHES: Final = "--"
OTHERS: Final = re.compile(
    r"(?<![\w.-])(torchrun|accelerate|deepspeed|mpirun|torch\.distributed\.(run|launch)"
    r"|atoll[-_]worker\s+launch)(?![\w.-])"
)  # in any word, since a shell may start it
PYTHON: Final = re.compile(r"python[0-9.]*")


def is_launched(command: Sequence[str]) -> bool:
    words = (*map(os.path.basename, command[:1]), *command[1:4])
    return words[:2] == LAUNCHER or words[1:] == MODULE


def within(command: Sequence[str]) -> Sequence[str]:
    return command[list(command).index(DASHES) + 1 :] if DASHES in command else ()


def has_launcher(command: Sequence[str], args: Sequence[str] = ()) -> bool:
    words = [*command, *args]
    return is_launched(words) or any(map(OTHERS.search, words))


def under_launcher(command: Sequence[str], args: Sequence[str] = ()) -> list[str]:
    """The command as every host runs it; `args` follow it and say what it starts.

    The launcher is that of the command's own Python, where it names one: a script's environment may
    not be first on the PATH.
    """
    if has_launcher(command, args):
        return list(command)
    first = command[0] if command else ""
    known = PYTHON.fullmatch(os.path.basename(first)) is not None
    own = (first, *MODULE) if known else LAUNCHER
    return [*own, DASHES, *command]
