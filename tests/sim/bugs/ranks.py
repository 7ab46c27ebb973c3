"""Bugs in learners of several ranks (rules 30, 31 and 35)."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_worker.link import codec
from atoll_worker.link.messages import Message
from atoll_worker.ranks.control import HEAD, OPEN, Control
from atoll_worker.ranks.peers import Peers
from sim.rank import Part, Rank
from sim.rank_group import Collective, RankGroup
from sim.rank_processes import FollowerRank, HeadRank
from sim.symbols import Key

Patch = pytest.MonkeyPatch


def a_head_that_obeys_a_step_early(patch: Patch) -> None:
    """Rule 31: it carries out what has come since it drew, and tells the others next time."""
    early: dict[int, list[Message]] = {}
    commands, draw = Control.commands, Control._commands

    def said(self: Control) -> bytes:
        now = draw(self)
        owed = b"".join(map(codec.encode, early.get(id(self), ())))
        return now[: len(OPEN)] + owed + now[len(OPEN) :]

    def hasty(self: Control) -> list[Message]:
        found = list(commands(self))
        if self.rank == HEAD and self.link is not None:
            found = found[len(early.get(id(self), ())) :]
            early[id(self)] = list(self.link.receive())
            found += early[id(self)]
        return found

    patch.setattr(Control, "_commands", said)
    patch.setattr(Control, "commands", hasty)


def ranks_that_obey_in_their_own_order(patch: Patch) -> None:
    """Rule 31."""
    commands = Control.commands

    def own(self: Control) -> list[Message]:
        found = list(commands(self))
        return found if self.rank == HEAD else sorted(found, key=repr)

    patch.setattr(Control, "commands", own)


def captures_that_mix_two_boundaries(patch: Patch) -> None:
    """Rule 31: a rank gives what it has copied at the boundary before."""
    part = Rank.part

    def old(self: Rank, key: Key) -> Part:
        found = part(self, key)
        return replace(found, steps=max(found.since, found.steps - 1))

    patch.setattr(FollowerRank, "part", old)


def a_rank_that_survives_its_head(patch: Patch) -> None:
    """Rule 30."""
    lose = Peers._lose

    def patient(self: Peers, how: str) -> None:
        if not how.startswith(f"rank {HEAD} "):
            lose(self, how)

    patch.setattr(Peers, "_lose", patient)


def a_head_that_goes_on_without_a_rank(patch: Patch) -> None:
    """Rule 30: it leaves who is gone out of all that ranks do together."""
    lose = Peers._lose

    def patient(self: Peers, how: str) -> None:
        if how.startswith(f"rank {HEAD} "):
            lose(self, how)

    def is_over(self: RankGroup, each: Collective) -> bool:
        there = {rank.number for rank in self.ranks if rank.process.alive}
        return there <= each.parts.keys()

    patch.setattr(Peers, "_lose", patient)
    patch.setattr(RankGroup, "is_over", is_over)


def work_of_a_head_without_a_rank_that_counts(patch: Patch) -> None:
    """Rule 30: it ends in time, but what it has trained meanwhile is offered."""

    def is_over(self: RankGroup, each: Collective) -> bool:
        there = {rank.number for rank in self.ranks if rank.process.alive}
        return there <= each.parts.keys()

    def whole(self: RankGroup, rank: Rank, waiting: Any) -> None:
        pass

    patch.setattr(RankGroup, "is_over", is_over)
    patch.setattr(RankGroup, "_fails_if_broken", whole)


def a_loss_that_ends_for_good(patch: Patch) -> None:
    """Rule 30: with another exit code than 75 nobody starts the learner again."""
    for kind in (HeadRank, FollowerRank):
        end = kind.end

        def final(self: Any, error: Any, end: Any = end) -> None:
            error.exit_code = self.refused_with or 65
            end(self, error)

        patch.setattr(kind, "end", final)


def tokens_of_all_ranks_that_are_added_up(patch: Patch) -> None:
    """Rule 35: the script's tokens are those of all ranks already."""

    def added(self: HeadRank) -> int:
        return self.world.scenario.tokens_per_step * len(self.group.ranks)

    patch.setattr(HeadRank, "script_tokens", added)


def ranks_that_go_on_with_their_own_counts(patch: Patch) -> None:
    """Rule 35."""
    patch.setattr(Control, "counted", lambda self: None)
