"""Whether the commands of a job can start at all: looked at before anything is started.

What cannot be known without starting it, such as the arguments of a launcher, passes.
"""

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from atoll_operator.api.job import launching
from atoll_operator.local.planning.process_plan import Planned
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError

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
    for each in planned:
        if each.role != "shard" and (each.command, each.folder) not in checked:
            checked.add((each.command, each.folder))
            if wrong := _wrong(each):
                raise SpecError(f"spec.{each.role}.template", *wrong)


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
    """What an interpreter runs: ("script", its path), ("module", its name) or nothing known."""
    if launching.is_launched(command):
        command = tuple(launching.within(command)) or command
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
    path = [str(folder / each) for each in ("", *given.split(os.pathsep))]
    return PathFinder.find_spec(top, path) is not None
