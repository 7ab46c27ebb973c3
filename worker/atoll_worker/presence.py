"""The one open Learner of this process, and how often one was opened.

A slot belongs to one learner. Two open Learners of one process would take it from each other all
the time, so the second is refused; one after the other is right. Each opening is an *instance* of
its own (docs/protocol.md, Words): its counters begin at 0, and the registrar gives it a new
incarnation, so that the tokens of both are accounted for (rule 13).
"""

import os
from dataclasses import dataclass

from atoll_protos.errors import SpecError


@dataclass(slots=True)
class Presence:
    """What is known in one process; a fork begins with its own."""

    owner: int = 0  # the process that this is about
    openings: int = 0
    holder: object | None = None  # the open Learner


_presence = Presence()


def take(holder: object, instance: str) -> str:
    """Note `holder` as the open Learner; the name of its instance, new for every opening.

    Raises SpecError if another Learner is open in this process.
    """
    if _presence.owner != os.getpid():
        _presence.owner, _presence.openings, _presence.holder = os.getpid(), 0, None
    if _presence.holder is not None:
        raise SpecError(
            "Learner",
            "another one is open in this process",
            "leave its `with`, or close() it, first; models that train together (a GAN, actor and "
            "critic) go into one nn.ModuleDict with one Learner",
        )
    _presence.holder = holder
    _presence.openings += 1
    return instance if _presence.openings == 1 else f"{instance}.{_presence.openings}"


def holds(holder: object) -> bool:
    """Whether `holder` is the open Learner of this process; not in a fork of it."""
    return _presence.holder is holder and _presence.owner == os.getpid()


def release(holder: object) -> None:
    """`holder` is closed, or could not be opened; nothing if it is not the open one."""
    if holds(holder):
        _presence.holder = None
