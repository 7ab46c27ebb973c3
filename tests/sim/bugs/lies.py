"""Bugs in what a shard believes of what a learner says (rules 38 and 39)."""

import pytest

from atoll_syncer.model.state import State
from atoll_syncer.rules import clock, validation

Patch = pytest.MonkeyPatch


def reports_that_are_not_looked_at(patch: Patch) -> None:
    """Rule 38: their numbers count."""
    patch.setattr(validation, "of_message", lambda state, sender, message: "")


def joins_that_are_not_looked_at(patch: Patch) -> None:
    """Rule 38: their epochs and incarnations are taken."""
    patch.setattr(validation, "of_join", lambda state, join: "")


def positions_that_nobody_bounds(patch: Patch) -> None:
    """Rule 39: all steps of a report count."""

    def everything(state: State, slot: str, steps: int, now: float) -> None:
        if slot in state.clock.positions:
            state.clock.advance(slot, steps)

    patch.setattr(clock, "advance", everything)


def ticks_of_joins_that_nobody_confirms(patch: Patch) -> None:
    """Rule 39: what one learner says that it has seen is enough."""

    def at_once(state: State, now: float) -> None:
        welcomed = [each for each in state.sessions.open.values() if each.welcomed and each.slot]
        clock.jump(state, max((each.join.tick_seen for each in welcomed), default=0))

    patch.setattr(clock, "catch_up", at_once)
