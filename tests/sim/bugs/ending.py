"""Bugs in the last versions, the end of the job, the export (rules 17, 27, 36)."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.length import Length
from atoll_syncer.model.history import History
from atoll_syncer.model.round import Round, RoundDecision, decide
from atoll_syncer.model.state import State
from atoll_syncer.rules import companions, ending, rounds
from sim.shard_values import ShardValues, Version
from sim.symbols import Works

Patch = pytest.MonkeyPatch


def last_rounds_that_wait_for_their_deadline(patch: Patch) -> None:
    """Rule 27."""

    def patient(each: Round, *, awaited: Any, quorum: int, now: float) -> Any:
        if each.deadline is not None and now < each.deadline:
            return RoundDecision(False, "waits")
        return decide(each, awaited=awaited, quorum=quorum, now=now)

    patch.setattr(rounds, "decide", patient)


def an_export_that_waits_for_no_companion(patch: Patch) -> None:
    """Rule 36."""
    patch.setattr(companions, "is_awaited", lambda state: False)


def a_companion_that_counts_as_unneeded(patch: Patch) -> None:
    """Rule 36: the next term sweeps it."""
    live = History.live_objects

    def versions(self: History) -> set[str]:
        return live(self) - {*self.companion, *self.companion_changed}

    patch.setattr(History, "live_objects", versions)


def lengths_of_which_the_largest_counts(patch: Patch) -> None:
    """Rule 27: an old revision wins over a newer one that is shorter."""
    also = Length.also

    def grown(self: Length, other: Length) -> Length:
        newest = also(self, other)
        return max(self, newest, key=lambda each: (each.steps or 0, each.tokens))

    patch.setattr(Length, "also", grown)


def files_that_are_believed_again(patch: Patch) -> None:
    """Rule 27: what was heard last counts."""
    also = Length.also
    patch.setattr(Length, "also", lambda self, other: also(replace(self, revision=-1), other))


def last_rounds_of_nothing_that_leave_what_is_rounded(patch: Patch) -> None:
    """Rule 17."""
    patch.setattr(rounds, "_is_rounded", lambda state, fragment: False)


def a_last_version_that_is_rounded(patch: Patch) -> None:
    """Rule 17."""
    merged = ShardValues.merged

    def rounded(
        self: ShardValues, fragment: int, head: Version, works: Works, norms: Any, *, exact: bool
    ) -> Version:
        return merged(self, fragment, head, works, norms, exact=exact and not works)

    patch.setattr(ShardValues, "merged", rounded)


def a_final_that_names_the_version_before(patch: Patch) -> None:
    """Rule 27."""

    def final(state: State) -> pb.ToLearner:
        versions = state.heads()
        for each in versions:
            each.version.number -= 1
        return pb.ToLearner(final=pb.Final(versions=versions))

    patch.setattr(ending, "final", final)
