"""Bugs in what was merged, what was late, and where data goes on (rules 13, 28, 35)."""

from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Effect, Send
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Merged, Trained
from atoll_syncer.model.roster import Slot
from atoll_syncer.model.state import State
from atoll_syncer.rules import data_states, sessions
from atoll_syncer.rules.shard import Shard
from atoll_worker.rules import adoption, joining, slices
from atoll_worker.rules.state import Progress
from sim.shard_values import ShardValues, Version
from sim.symbols import Works

Patch = pytest.MonkeyPatch


def an_offer_merged_again(patch: Patch) -> None:
    """Rule 13."""
    kept: dict[tuple[str, int], Works] = {}
    merged = ShardValues.merged

    def again(
        self: ShardValues, fragment: int, head: Version, works: Works, norms: Any, *, exact: bool
    ) -> Version:
        before = kept.get((self.process.name, fragment), ())
        kept[self.process.name, fragment] = works
        if before and len(works) == 1 and before[0].slot == works[0].slot:
            works = (replace(works[0], first=before[0].first),)
        return merged(self, fragment, head, works, norms, exact=exact)

    patch.setattr(ShardValues, "merged", again)


def a_publish_that_does_not_name_what_was_merged(patch: Patch) -> None:
    """Rule 13."""
    publish = Shard.publish

    def silent(self: Shard, session: int, fragment: int) -> Any:
        head = publish(self, session, fragment)
        if head is not None:
            head.ClearField("merged")
        return head

    patch.setattr(Shard, "publish", silent)


def another_capture_is_told_as_merged(patch: Patch) -> None:
    """Rule 13's law."""
    publish = Shard.publish

    def liar(self: Shard, session: int, fragment: int) -> Any:
        head = publish(self, session, fragment)
        if head is not None and head.HasField("merged"):
            head.merged.incarnation += 1
        return head

    patch.setattr(Shard, "publish", liar)


def tokens_that_count_again_in_each_session(patch: Patch) -> None:
    """Rule 35."""
    take = Slot.take

    def twice(self: Slot, report: pb.Report, *rest: Any) -> int:
        self.trained = replace(self.trained, before=self.trained.before + report.tokens)
        return take(self, report, *rest)

    patch.setattr(Slot, "take", twice)


def tokens_that_only_the_next_instance_writes(patch: Patch) -> None:
    """Rule 35: after a restart of the shard those of the present instances are gone."""
    patch.setattr(State, "unwritten", property(lambda self: {}))


def tokens_that_count_again_after_a_restart(patch: Patch) -> None:
    """Rule 35: what is written of an incarnation counts as that of an earlier one."""

    def opened(self: Slot, session: int, now: float, incarnation: int = 0, lanes: int = 1) -> None:
        if self.session is None and not self.reported_at:
            self.trained = Trained(incarnation=incarnation, before=self.trained.total)
        open_slot(self, session, now, incarnation, lanes)

    open_slot = Slot.open
    patch.setattr(Slot, "open", opened)


def learners_that_begin_their_data_again(patch: Patch) -> None:
    """Rule 28."""
    welcome = sessions.welcome

    def forgetful(state: State, session: int, incarnation: int, now: float) -> list[Effect]:
        effects = welcome(state, session, incarnation, now)
        for effect in effects:
            if isinstance(effect, Send) and effect.message.HasField("welcome"):
                effect.message.welcome.cursor = 0
        return effects

    patch.setattr(sessions, "welcome", forgetful)


def the_data_state_of_the_last_welcome(patch: Patch) -> None:
    """Rule 28."""
    note = joining._note_cursor

    def last(progress: Progress, welcome: pb.Welcome) -> None:
        note(progress, welcome)
        progress.data_state = welcome.data_state if welcome.HasField("data_state") else None

    patch.setattr(joining, "_note_cursor", last)


def data_states_that_stay_when_cursors_move(patch: Patch) -> None:
    """Rule 28."""
    merge = History._merge

    def stays(self: History, fragment: int, each: Merged, data_state: str = "") -> None:
        merge(self, fragment, each, data_state or self.data_states.get(each.slot, ""))

    patch.setattr(History, "_merge", stays)


def the_durable_state_for_a_cursor_under_way(patch: Patch) -> None:
    """Rule 28."""
    cursor = data_states.cursor

    def mixed(state: State, slot: str) -> tuple[int, bytes | None]:
        return cursor(state, slot)[0], state.data_states.kept.get(slot)

    patch.setattr(data_states, "cursor", mixed)


def late_work_that_counts_as_overlap(patch: Patch) -> None:
    """Rule 13's law."""

    def kinder(*arguments: Any, **fields: Any) -> slices.Outcome:
        became = slices.outcome(*arguments, **fields)
        return replace(became, overlap=became.overlap + became.late, late=0)

    patch.setattr(adoption, "outcome", kinder)
