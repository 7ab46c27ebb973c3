"""The one open Learner of this process, and how often one was opened.

Two open Learners of one process would take their slot from each other all the time. One after the
other is right: each opening is an *instance* of its own, so the tokens of both count (rule 13).
"""

import os

from atoll_protos.errors import SpecError

_open: dict[int, object] = {}  # the open Learner, by process: a fork begins with its own
_openings: dict[int, int] = {}  # of a process


def take(holder: object, instance: str) -> str:
    """Note `holder`, and return a new instance's name. SpecError if another Learner is open."""
    process = os.getpid()
    if process in _open:
        raise SpecError(
            "Learner",
            "another one is open in this process",
            "leave its `with`, or close() it, first; models that train together (a GAN, actor and "
            "critic) go into one nn.ModuleDict with one Learner",
        )
    _open[process] = holder
    _openings[process] = number = _openings.get(process, 0) + 1
    return instance if number == 1 else f"{instance}.{number}"


def holds(holder: object) -> bool:
    return _open.get(os.getpid()) is holder


def release(holder: object) -> None:
    if holds(holder):
        del _open[os.getpid()]
