"""Whether the commands of a job can start at all: looked at before anything is started.

What cannot be known without starting it, such as the arguments of a launcher, passes.
"""

import atexit
import contextlib
import importlib.util
import os
import random
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Final

from atoll_operator.api.job import parsing
from atoll_operator.api.status.conditions import STARTING_SECONDS_MAX
from atoll_operator.local.child import Child, by_slot
from atoll_operator.local.local_status import ProcessReports
from atoll_operator.local.process_plan import Planned
from atoll_operator.local.run_files import shown
from atoll_operator.local.show.run_summary import RunResult
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.exits import ExitCode, is_permanent

PYTHON = re.compile(r"^(?:python|pypy)[\d.]*$")
SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
# Of a task of Slurm or MPI: libraries take them for ranks and a world, of which a learner is none.
OF_A_TASK: Final = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|NNODES|NTASKS_PER_NODE|TASKS_PER_NODE)"
    r"|PMI_(RANK|SIZE)|OMPI_COMM_WORLD_\w+|MV2_COMM_WORLD_\w+"
)
RELATIVE = "a relative one begins in the manifest's folder"


def environment(planned: Planned) -> dict[str, str]:
    """Its variables. This Python's folder comes first in PATH, so that `python` has Atoll.

    Each process computes with one thread, since there are several, unless the caller set a number.
    A task of Slurm may be the caller: which of how many it is, is not for a learner.
    """
    own = {k: v for k, v in os.environ.items() if k != Env.TOKEN and not OF_A_TASK.fullmatch(k)}
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    return {"OMP_NUM_THREADS": "1", **own, "PATH": path, **planned.env}


def check_startable(planned: Iterable[Planned]) -> None:
    checked = set()
    for process in planned:
        if process.role != "shard" and (process.command, process.folder) not in checked:
            checked.add((process.command, process.folder))
            if wrong := _wrong(process):
                raise SpecError(f"spec.{process.role}.template", *wrong)


def _wrong(planned: Planned) -> tuple[str, str] | None:
    word, folder = planned.command[0], Path(planned.folder or ".")
    if not folder.is_dir():
        return f"workingDir {folder} is not a folder", f"fix workingDir; {RELATIVE}"
    named = folder / word if os.path.dirname(word) else word
    program = shutil.which(named, path=environment(planned)["PATH"])
    if program is None:
        return _not_a_program(word, folder)
    kind, what = _target(planned.command)
    script, there = folder / what, folder.resolve()
    if kind == "script" and not script.exists():
        return f"there is no file {what} in {there}", f"fix command, or workingDir; {RELATIVE}"
    if kind == "script" and script.is_dir() and not (script / "__main__.py").exists():
        return f"{what} is a folder", "name the script in it"
    mine = os.path.dirname(program) == os.path.dirname(sys.executable)
    if kind == "module" and mine and not _importable(what, planned, folder):
        problem = f"there is no module {what}, also not in {there}"
        return problem, f"install it, or fix command or workingDir; {RELATIVE}"
    return None


def _not_a_program(word: str, folder: Path) -> tuple[str, str]:
    path = folder / word
    if path.is_dir():
        return f"the command {word} is a folder", "name the program in it"
    if path.is_file() and os.path.dirname(word):
        remedy = f"chmod +x {path}, or put its interpreter before it, as in [python, {word}]"
        return f"the command {word} is not executable", remedy
    if path.is_file():
        return f"there is no command {word} in PATH", f"write [python, {word}] or [./{word}]"
    where = f" in {folder.resolve()}" if os.path.dirname(word) else ""
    return f"there is no command {word}{where}", "fix command, or install it"


def _target(command: tuple[str, ...]) -> tuple[str, str]:
    """Find what an interpreter runs: ("script", path), ("module", name) or nothing known."""
    if parsing.is_launched(command):
        command = tuple(parsing.within(command)) or command
        if command[0].endswith(".py"):
            return "script", command[0]
    name, words = os.path.basename(command[0]), iter(command[1:])
    python = bool(PYTHON.match(name))
    if not python and name not in SHELLS:
        return "", ""
    for word in words:
        if not word.startswith("-"):
            return "script", word
        if word[:2] in (("-W", "-X") if python else ("-o", "-O")):
            if not word[2:]:  # its value is the next word
                next(words, None)
            continue
        letters = "" if word.startswith("--") else word[1:]
        if python and letters.endswith("m"):
            return "module", next(words, "")
        if word == "-" or "c" in letters or (not python and "s" in letters):
            break  # a text or standard input
    return "", ""


def _importable(module: str, planned: Planned, folder: Path) -> bool:
    """Whether the first part of a module's name is found: here, or where the process would look."""
    top = module.partition(".")[0]
    try:
        if importlib.util.find_spec(top) is not None:
            return True
    except (ImportError, ValueError):
        return True  # another one than ours would have to look
    given = environment(planned).get("PYTHONPATH", "")
    path = [str(folder / entry) for entry in ("", *given.split(os.pathsep))]
    return PathFinder.find_spec(top, path) is not None


PORTS = range(20_000, 29_000)  # below those of outgoing connections and of Kubernetes' services
_HELD: list[socket.socket] = []  # as long as this process lives


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of the loopback interface that are free at the moment, and no other run's.

    None is one that an outgoing connection may take before (on Linux those from 32768 on). A run's
    shard listens only seconds later, and not while it is started again, so a port that is free may
    be another run's. On Linux a run holds the name of each of its ports as a socket without a file.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            _hold(port)
            found.append(port)
        if len(found) >= count:
            return tuple(found)
    raise OSError(f"only {len(found)} of the ports from {PORTS[0]} to {PORTS[-1]} are free")


def _hold(port: int) -> None:
    """Raise OSError if another run has this port."""
    if sys.platform == "linux":
        held = socket.socket(socket.AF_UNIX)
        atexit.register(held.close)
        try:
            held.bind(f"\0atoll-run-port-{port}")
        except OSError:
            held.close()
            raise
        _HELD.append(held)


LEARNER: Final = "learner"
NOBODY: Final[Mapping[str, str]] = MappingProxyType({})


def reports_of(children: Sequence[Child], now: float) -> ProcessReports:
    given_up: list[str] = []
    started_again: dict[str, str] = {}
    for child in children:
        text = f"{child.planned.name} {child.ended}; log: {shown(child.log)}"
        if child.ended and child.given_up:
            given_up.append(text)
        elif child.ended:
            started_again.setdefault(child.planned.whole, text)
    starting = {}
    learners = by_slot(child for child in children if child.planned.role == LEARNER)
    for slot, hosts in learners.items():
        seconds = now - min(host.started_at for host in hosts)
        first = all(host.process is not None and host.record.first is None for host in hosts)
        if first and seconds < STARTING_SECONDS_MAX:
            starting[slot] = seconds
    return ProcessReports(given_up=given_up, started_again=started_again, starting=starting)


def unsaved(children: Sequence[Child], first: str, place: str) -> str:
    """Advise where the script of the job's first slot, which saves, is not at its end."""
    scripts = [
        child
        for child in children
        if child.planned.role == LEARNER and child.planned.whole == first
    ]
    if all(script.exit_code == ExitCode.FINAL for script in scripts):
        return ""
    return (
        f"the script of {first} did not come to its end, so it may have saved no model: the values"
        f" are in {place}"
    )


def ended_after(children: Sequence[Child]) -> dict[str, str]:
    return {child.planned.name: child.after for child in children if child.after}


def refused(children: Sequence[Child]) -> dict[str, str]:
    """By process: why a learner was refused for good, so that another start cannot help it."""
    return {
        child.planned.name: child.given_up
        for child in children
        if child.given_up
        and child.planned.role == LEARNER
        and child.record.last is not None
        and is_permanent(child.record.last.code)
    }


def exit_of(
    children: Sequence[Child], *, allow_refused: bool, elsewhere: Mapping[str, str] = NOBODY
) -> RunResult:
    """Of a complete job; `elsewhere`: as in `refused`, of learners on other machines."""
    if ended_after(children):
        return RunResult.FAILED_AFTER
    gone = refused(children) or elsewhere
    return RunResult.REFUSED if gone and not allow_refused else RunResult.COMPLETE


def afterwards(
    children: Sequence[Child], code: RunResult, elsewhere: Mapping[str, str] = NOBODY
) -> str:
    """Return what the last line of a complete job says of processes, and of its exit code."""
    said: dict[str, list[Child]] = {}
    for child in children:
        if child.after:
            said.setdefault(child.after, []).append(child)
    parts = []
    for how, those in said.items():
        names = ", ".join(child.planned.name for child in those)
        parts.append(f"once the job was over {names}: {how}; log: {shown(those[0].log)}")
    if names := ", ".join([*refused(children), *elsewhere]):
        more = " (--allow-refused: 0)" if code is RunResult.REFUSED else ""
        parts.append(f"refused for good: {names}{more}")
    if code is not RunResult.COMPLETE:
        parts.append(f"exit code {int(code)}")
    return "".join(f"; {part}" for part in parts)
