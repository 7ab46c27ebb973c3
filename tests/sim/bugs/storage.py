"""Bugs in what is durable, and what comes back after a loss (rules 19 to 22, 29)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer import serving
from atoll_syncer.driver import Driver
from atoll_syncer.model import recovery
from atoll_syncer.model.effects import Effect
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Entry, TermBegun
from atoll_syncer.model.state import State
from atoll_syncer.recording import Recording
from atoll_syncer.rules import recovery as recovery_rules
from atoll_syncer.rules import (
    runs,
)
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage import takeover
from atoll_syncer.tidying import Tidying
from atoll_worker.rules import adoption, slices
from sim.memory_store import MemoryStore

Patch = pytest.MonkeyPatch


def entries_that_count_before_they_are_durable(patch: Patch) -> None:
    """Rule 19."""
    append = Driver._append

    async def early(self: Driver, entry: Entry) -> None:
        if not isinstance(entry, Committed):
            await append(self, entry)
            return
        assert self.values is not None
        self.values.committed(entry.slice)
        self.feed(self.shard.appended(entry, self.now()))
        await asyncio.sleep(5.0)
        self.journal.append(entry)

    patch.setattr(Driver, "_append", early)


def a_restart_from_the_version_before(patch: Patch) -> None:
    """Rule 19."""

    async def rolled_back(*arguments: Any) -> History:
        history: History = await takeover.wait_for_turn(*arguments)
        for fragment, head in history.previous.items():
            history.heads[fragment] = head
        return history

    patch.setattr(serving, "wait_for_turn", rolled_back)


def momenta_that_begin_again_in_each_process(patch: Patch) -> None:
    """Rule 19: the merges that a momentum holds are not carried over a restart."""

    async def begun_again(*arguments: Any) -> History:
        history: History = await takeover.wait_for_turn(*arguments)
        for fragment, head in history.heads.items():
            history.heads[fragment] = replace(head, merges=0)
        return history

    patch.setattr(serving, "wait_for_turn", begun_again)


def a_collection_of_what_is_alive(patch: Patch) -> None:
    """Rule 19: the newest two of a slice are."""

    def live(self: History) -> set[str]:
        return {head.object for head in self.heads.values()}

    patch.setattr(History, "live_objects", live)


def a_sweep_in_every_term(patch: Patch) -> None:
    """Rule 19: also in a second term of one process, whose merge under way has no entry yet."""
    appended = Tidying.appended

    def again(self: Tidying, entry: Entry, history: History) -> None:
        self._swept = self._swept and not isinstance(entry, TermBegun)
        appended(self, entry, history)

    patch.setattr(Tidying, "appended", again)


def a_recovery_without_those_that_were_turned_away(patch: Patch) -> None:
    """Rule 19: a learner that was told to dial again holds a newer version, and is rolled back."""
    patch.setattr(recovery_rules, "turned_away", lambda state, join: None)


def a_store_that_overwrites(patch: Patch) -> None:
    """Rule 20."""

    def create(self: MemoryStore, name: str, data: bytes) -> bool:
        self._check(name)
        self.data[name] = data
        for watch in self.on_create:
            watch(name, data)
        return True

    patch.setattr(MemoryStore, "create", create)


def epochs_that_stand_still(patch: Patch) -> None:
    """Rule 20."""
    start = Shard.start

    def same(self: Shard, now: float) -> list[Effect]:
        self.history.epoch -= self.history.epoch > 0
        return start(self, now)

    patch.setattr(Shard, "start", same)


def a_seed_for_what_was_lost(patch: Patch) -> None:
    """Rule 22."""
    patch.setattr(recovery_rules, "versions_claimed", lambda state, session, now: [])
    patch.setattr(recovery_rules, "found_empty", lambda state, now: [])
    answered = runs.hello_answered

    def unmarked(state: State, reply: pb.HelloReply, now: float) -> list[Effect]:
        reply.begun = False
        return answered(state, reply, now)

    patch.setattr(runs, "hello_answered", unmarked)


def a_recovery_of_who_comes_first(patch: Patch) -> None:
    """Rule 22: no learner is waited for, and the lowest version is taken."""
    patch.setattr(recovery_rules, "why_wait", lambda *arguments: "")
    choose = recovery.choose

    def lowest(holders: Any, *rest: Any) -> Any:
        few = sorted(holders, key=lambda each: each.number)[:1]
        return choose(few, *rest)

    patch.setattr(recovery_rules, "choose", lowest)


def numbers_that_begin_again_after_a_loss(patch: Patch) -> None:
    """Rule 21: and learners that take the newest term's, whatever its number."""
    patch.setattr(recovery_rules, "number", lambda state, held: 1)
    for module in (slices, adoption):
        patch.setattr(module, "order", lambda version: (version.epoch, version.number))


def a_tape_that_is_not_filled(patch: Patch) -> None:
    """Rule 29."""

    async def nothing(self: Recording) -> None:
        return

    patch.setattr(Recording, "fill", nothing)
