"""A command of `atoll` in the background: started, with its output in a file, and ended again.

It is the same command in a session of its own, so the end of a terminal is none for it. Who has
started it sees what it says until it runs, or ends.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from atoll_operator.local import run_folder
from atoll_operator.local.child import tail
from atoll_operator.local.run_files import Say, shown
from atoll_operator.machines.bundle import must_take
from atoll_protos.errors import SpecError

DETACH: Final = "--detach"
DASHES: Final = "--"
LOOK_SECONDS: Final = 0.1
STOP_SECONDS_MAX: Final = 60.0  # learners leave in order, and those that do not are killed

Detach = Annotated[
    bool, typer.Option(DETACH, help="Go on in the background, also without a terminal.")
]
Stop = Annotated[bool, typer.Option("--stop", help="End the one in the background, in order.")]


def again(arguments: Sequence[str], without: Sequence[str], *more: str) -> list[str]:
    """Return the words of a command without some options and their values, and with more."""
    at = list(arguments).index(DASHES) if DASHES in arguments else len(arguments)
    kept, value_follows = list[str](), False
    for word in arguments[:at]:
        name, with_value, _ = word.partition("=")
        if value_follows:
            value_follows = False
        elif name in without:
            value_follows = not with_value
        elif name != DETACH:
            kept.append(word)
    return [*kept, *more, *arguments[at:]]


def start(words: Sequence[str], log: Path, say: Say, *ready: str) -> int:
    """Start what runs in the folder of its log; 0 once it has said one of `ready`.

    Else its exit code. Raises SpecError where one runs there, or where it could say nothing.
    """
    must_take(log.parent)
    with run_folder.running(log.parent, DETACH):
        before = log.stat().st_size if log.exists() else 0
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        process = subprocess.Popen(
            [sys.executable, sys.argv[0], *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    while (code := process.poll()) is None:
        if any(words in tail(log, before) for words in ready):
            break
        time.sleep(LOOK_SECONDS)
    say(tail(log, before).rstrip())
    if code is None:
        process.returncode = 0  # it outlives this process, which does not wait for it
        say(f"goes on in the background as process {process.pid}; its output is in {shown(log)}")
        say("the same command with --stop in place of --detach ends it")
    return code or 0


def stop(folder: Path, say: Say) -> None:
    """End what runs in a folder, in order, and wait. Raises SpecError where nothing does."""
    pid = run_folder.holder(folder)
    if pid is None:
        raise SpecError("--stop", f"nothing runs in {folder} on this machine", "look elsewhere")
    process = os.pidfd_open(pid) if sys.platform == "linux" else None
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while run_folder.is_run(folder):
        if time.monotonic() > deadline:
            problem = f"process {pid} still runs after {STOP_SECONDS_MAX:.0f} s"
            raise SpecError("--stop", problem, f"look at its output in {shown(folder)}")
        time.sleep(LOOK_SECONDS)
    if process is not None:  # it has let go of the folder a moment before it ends
        select.select([process], [], [], max(0.0, deadline - time.monotonic()))
        os.close(process)
    say(f"process {pid} has ended; started again with {shown(folder)}, it goes on")
