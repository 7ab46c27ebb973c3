"""Learners of several processes: the launcher in a container's command, and their number; pure.

What a container runs is `atoll-worker launch -- COMMAND`, and PET_NPROC_PER_NODE in its variables
says how many processes of it one learner is. Both are plain parts of the template, so that the
manifest means the same here and in a cluster.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atoll_operator.api.pods import Container
from atoll_protos.environment import Torchrun
from atoll_protos.errors import SpecError

NUMBER: Final = Torchrun.PROCESSES
FLAG: Final = "--processes-per-learner"
LAUNCHER: Final = ("atoll-worker", "launch")
MODULE: Final = ("-m", "atoll_worker", "launch")  # of a Python: the same
OTHERS: Final = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun"})
DASHES: Final = "--"
SHORT: Final = "[atoll-worker, launch, --, train.py]"


def of(container: Container) -> int:
    """How many processes a learner of this container is; 1 where that is not known."""
    values = [each.value for each in container.env if each.name == NUMBER]
    known = values and values[-1].isdecimal() and is_launched(container.command)
    return max(1, int(values[-1])) if known else 1


def is_launched(command: Sequence[str]) -> bool:
    """Whether a command is the launcher."""
    words = (*map(os.path.basename, command[:1]), *command[1:4])
    return words[:2] == LAUNCHER or words[1:] == MODULE


def within(command: Sequence[str]) -> Sequence[str]:
    """What the launcher starts, of its command; empty where it names nothing."""
    return command[list(command).index(DASHES) + 1 :] if DASHES in command else ()


def launched(command: Sequence[str], count: int, field: str) -> list[str]:
    """The command for so many processes: under the launcher, where it is not already there.

    One process needs none. Raises SpecError where the command has another launcher, or says the
    number of processes itself.
    """
    words = list(command)
    if is_launched(words):
        options = words[: len(words) - len(within(words))]
        if any(word.replace("_", "-").startswith("--nproc") for word in options):
            problem = f"the command of {field} has --nproc-per-node itself"
            raise SpecError(FLAG, problem, "leave one of them out")
        return words
    if count == 1:
        return words
    if not words:
        problem = f"{field} names no command, and the built-in model trains in one process"
        raise SpecError(FLAG, problem, f"give it one, as in command: {SHORT}")
    if os.path.basename(words[0]) in OTHERS or "torch.distributed.run" in words:
        problem = f"the command of {field} has a launcher of its own, {words[0]}"
        raise SpecError(FLAG, problem, f"put this in its place: command: {SHORT}")
    return [*LAUNCHER, DASHES, *words]


def without_number(env: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A container's variables without the number of processes."""
    return [dict(each) for each in env if each.get("name") != NUMBER]
