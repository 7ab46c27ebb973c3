"""All checkers."""

from sim.watch import Watcher

ALL: tuple[type[Watcher], ...] = ()
