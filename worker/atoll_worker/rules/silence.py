"""Shards that say nothing (rule 44): the process may stand, or its node be gone.

A shard says its tick every second. Only time in which this process ran itself counts: when a look
comes late, it has stood, and what the shards have said meanwhile is still to be read.
"""

from typing import Final

from atoll_worker.rules import joining
from atoll_worker.rules.effects import Effect
from atoll_worker.rules.learner_state import KnownShard, LearnerState

SILENT_SECONDS: Final = (3.0, 24.0)  # until a session is left, and at most, where shards are slow
LATE_SECONDS: Final = 1.0  # so late is no look of a process that runs


def heard(known: KnownShard, now: float) -> None:
    known.heard_at = now


def welcomed(known: KnownShard, epoch: int, now: float) -> None:
    """Where the term that was left answers again, the shard was only slow: it gets more time."""
    least, most = SILENT_SECONDS
    if epoch > known.epoch:
        known.silent_seconds = least
    elif known.left_silent:
        known.silent_seconds = min(most, 2 * known.silent_seconds)
    known.left_silent, known.heard_at = False, now


def deadline(state: LearnerState) -> float:
    """When the next session is to be left."""
    return min((_ends_at(each) for each in state.shards if each.welcomed), default=float("inf"))


def leave_silent(state: LearnerState, now: float) -> list[Effect]:
    """Hang up on the shards that have said nothing for too long; call at `deadline`."""
    if now > deadline(state) + LATE_SECONDS:
        for known in state.shards:
            known.heard_at = now
    effects: list[Effect] = []
    for shard, known in enumerate(state.shards):
        if known.welcomed and now >= _ends_at(known):
            known.left_silent = True
            reason = f"it has said nothing for {known.silent_seconds:.0f} s"
            effects += joining.hang_up(state, shard, reason)
    return effects


def _ends_at(known: KnownShard) -> float:
    return known.heard_at + known.silent_seconds
