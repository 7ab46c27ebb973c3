"""All checkers, each run over every seed."""

from sim.checkers import (
    back,
    checkpoints,
    claims,
    counts,
    export,
    kept,
    lanes,
    length,
    lies,
    momentum,
    parts,
    progress,
    ranks,
    restored,
    rounds,
    second,
    shut_out,
    silence,
    start,
    still,
    tape,
    terms,
    values,
)
from sim.watch import Watcher

MODULES = (
    *(start, rounds, values, momentum, tape, progress, kept, length, export),
    *(ranks, parts, lanes, still, lies, claims, shut_out, checkpoints, restored, terms),
    silence,
    back,
    second,
    counts,
)
ALL: tuple[type[Watcher], ...] = tuple(
    each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Watcher)
    if "rule" in vars(each) and each.__module__ == module.__name__
)
