"""Learners of several processes: the launcher in a container's command, and their number; pure.

What a container runs is `atoll-worker launch -- COMMAND`, and PET_NPROC_PER_NODE in its variables
says how many processes of it one learner is. Both are plain parts of the template, so that the
manifest means the same here and in a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from atoll_operator.api.launching import DASHES, LAUNCHER, has_launcher, is_launched, within
from atoll_operator.api.pods import Container
from atoll_operator.api.runfile import TRAIN
from atoll_protos.errors import SpecError
from atoll_protos.torchrun import Torchrun

NUMBER: Final = Torchrun.PROCESSES
FLAG: Final = "--processes-per-learner"
BUILT_IN: Final = ("python3", *TRAIN)  # what a template without a command runs
SHORT: Final = "[atoll-worker, launch, --, train.py]"


def of(container: Container) -> int:
    """How many processes a learner of this container is; 1 where that is not known."""
    values = [each.value for each in container.env if each.name == NUMBER]
    known = values and values[-1].isdecimal() and is_launched(container.command)
    return max(1, int(values[-1])) if known else 1


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
    if has_launcher(words):
        problem = f"the command of {field} has a launcher of its own, {words[0]}"
        raise SpecError(FLAG, problem, f"put this in its place: command: {SHORT}")
    return [*LAUNCHER, DASHES, *(words or BUILT_IN)]


def without_number(env: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A container's variables without the number of processes."""
    return [dict(each) for each in env if each.get("name") != NUMBER]
