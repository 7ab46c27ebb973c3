"""Bugs in how a run, a session and an incarnation begin (rules 1 to 5)."""

from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Append, Drop, Effect
from atoll_syncer.model.log import Taken
from atoll_syncer.model.state import Standing, State
from atoll_syncer.rules import incarnations, runs, seeding, sessions
from atoll_worker.link.messages import Adopt, Start
from atoll_worker.rules import state as learner_state
from sim.learner_process import LearnerProcess
from sim.world import World

Patch = pytest.MonkeyPatch


def commits_without_the_mark(patch: Patch) -> None:
    """Rule 1."""

    def mark(state: State) -> list[Effect]:
        state.seed.marked = True
        return []

    patch.setattr(seeding, "mark", mark)


def seeds_that_depend_on_their_sender(patch: Patch) -> None:
    """Rule 1."""
    patch.setattr(World, "seed_name", lambda self, learner: learner.instance)


def a_registrar_that_asks_no_shard(patch: Patch) -> None:
    """Rule 2."""
    time_passed = runs.time_passed

    def forgetful(state: State, now: float) -> list[Effect]:
        state.run.named.clear()
        state.run.stored.clear()
        return time_passed(state, now)

    patch.setattr(runs, "time_passed", forgetful)


def admission_beside_a_live_session(patch: Patch) -> None:
    """Rule 4."""
    patch.setattr(sessions, "live_instance", lambda state, slot: "")


def welcome_before_it_is_durable(patch: Patch) -> None:
    """Rules 4 and 5."""
    opened = sessions.opened

    def early(state: State, session: int, join: Any, *rest: Any) -> list[Effect]:
        effects, now = opened(state, session, join, *rest), rest[-1]
        for effect in effects:
            if isinstance(effect, Append) and isinstance(effect.entry, Taken):
                welcome = sessions.welcome(state, session, effect.entry.incarnation, now)
                return [*effects, *welcome]
        return effects

    patch.setattr(sessions, "opened", early)


def zombie_offers_that_stay(patch: Patch) -> None:
    """Rule 5."""
    taken = sessions.taken

    def keep(state: State, entry: Taken, standing: Standing, now: float) -> list[Effect]:
        complete = {n: dict(each.complete) for n, each in state.rounds.open.items()}
        effects = taken(state, entry, standing, now)
        for number, before in complete.items():
            state.rounds.open[number].complete = before
        return [effect for effect in effects if not isinstance(effect, Drop)]

    patch.setattr(sessions, "taken", keep)


def incarnations_that_need_no_proof(patch: Patch) -> None:
    """Rule 5: a learner's word is enough."""
    patch.setattr(incarnations, "is_proved", lambda state, join: True)


def steps_before_all_have_welcomed(patch: Patch) -> None:
    """Rule 5."""
    receive = LearnerProcess.receive

    def hasty(self: LearnerProcess, command: Any) -> None:
        receive(self, command)
        if isinstance(command, Adopt) and not self.training.begun:
            receive(self, Start(incarnation=self.incarnation, cursor=0, tick=0))

    patch.setattr(LearnerProcess, "receive", hasty)


def joins_that_name_the_lowest_tick(patch: Patch) -> None:
    """Rule 3."""

    def lowest(self: learner_state.State) -> int:
        return min((each.tick for each in self.shards), default=0)

    patch.setattr(learner_state.State, "tick_seen", property(lowest))


def runs_that_are_not_compared(patch: Patch) -> None:
    """Rule 2: a learner of a former run is welcomed, and brings its tick."""
    check = sessions.check

    def lenient(join: pb.Join, *others: Any) -> pb.End | None:
        join.ClearField("run")
        return check(join, *others)

    patch.setattr(sessions, "check", lenient)
    patch.setattr(incarnations, "_may_have_given", lambda join, history: True)


def words_that_count_whatever_their_number(patch: Patch) -> None:
    """Rule 4."""
    requested = runs.requested

    def renumbered(state: State, token: int, request: Any) -> list[Effect]:
        if isinstance(request, pb.SetOwnerRequest):
            owned = state.history.owned.get(request.slot)
            request.word = owned.word if owned else 0
        return requested(state, token, request)

    patch.setattr(runs, "requested", renumbered)
