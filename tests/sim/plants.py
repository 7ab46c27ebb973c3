"""Bugs planted in the production rules or in the simulation's edge, to prove the checkers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import schedule
from atoll_syncer import serving
from atoll_syncer.driver import Driver
from atoll_syncer.model import recovery
from atoll_syncer.model.clock import Clock
from atoll_syncer.model.effects import Append, Drop, Effect, Send
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Committed, Entry, Merged, Taken, TermBegun
from atoll_syncer.model.roster import Slot
from atoll_syncer.model.round import Round, RoundDecision, decide
from atoll_syncer.model.state import Standing, State
from atoll_syncer.rules import companions, ending, offers, rounds, runs, seeding, sessions
from atoll_syncer.rules import recovery as recovery_rules
from atoll_syncer.rules.shard import Shard
from atoll_syncer.storage import takeover
from atoll_syncer.tidying import Tidying
from atoll_worker.link.messages import Adopt, Start
from atoll_worker.rules import adoption, joining, slices
from atoll_worker.rules import state as learner_state
from atoll_worker.rules.state import Progress
from atoll_worker.transport.transport import Transport
from sim.learner_process import LearnerProcess
from sim.memory_store import MemoryStore
from sim.shard_values import ShardValues, Version
from sim.symbols import Work
from sim.world import World

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One bug, and the rule whose checker must find it."""

    rule: str
    plant: Callable[[Patch], None]
    seed: int = 1  # tried first: one that showed the bug when this was written

    @property
    def name(self) -> str:
        """For the test's name."""
        return f"{self.rule}: {self.plant.__name__.replace('_', ' ')}"


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
        return time_passed(state, now)

    patch.setattr(runs, "time_passed", forgetful)


def admission_beside_a_live_session(patch: Patch) -> None:
    """Rule 4."""
    patch.setattr(sessions, "live_instance", lambda state, slot: "")


def welcome_before_it_is_durable(patch: Patch) -> None:
    """Rules 4 and 5."""
    opened = sessions.opened

    def early(state: State, session: int, join: Any, now: float) -> list[Effect]:
        effects = opened(state, session, join, now)
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


def steps_before_all_have_welcomed(patch: Patch) -> None:
    """Rule 5."""
    receive = LearnerProcess.receive

    def hasty(self: LearnerProcess, command: Any) -> None:
        receive(self, command)
        if isinstance(command, Adopt) and not self.training.begun:
            receive(self, Start(incarnation=self.incarnation, cursor=0, tick=0))

    patch.setattr(LearnerProcess, "receive", hasty)


def every_step_of_anybody_ticks(patch: Patch) -> None:
    """Rule 8."""

    def advance(self: Clock, slot: str, steps: int) -> None:
        self.positions = {name: at + steps for name, at in self.positions.items()}

    patch.setattr(Clock, "advance", advance)


def a_clock_that_forgets_its_log(patch: Patch) -> None:
    """Rule 8."""
    init = Shard.__init__

    def forgetful(self: Shard, **arguments: Any) -> None:
        init(self, **arguments)
        self.state.clock.tick = self.state.clock.drawn_at = 0

    patch.setattr(Shard, "__init__", forgetful)
    patch.setattr(Clock, "raise_to", lambda self, tick: None)


def offers_without_a_call(patch: Patch) -> None:
    """Rule 10."""
    send_offer = Transport._send_offer

    def twice(self: Transport, shard: int, offer: pb.Offer) -> None:
        send_offer(self, shard, offer)
        send_offer(self, shard, offer)

    patch.setattr(Transport, "_send_offer", twice)
    patch.setattr(offers, "objection", lambda state, sender, offer: "")


def calls_to_every_slot_with_a_session(patch: Patch) -> None:
    """Rule 10."""
    patch.setattr(offers, "usable", lambda state, slot, each, now: slot.session is not None)


def a_quorum_of_one_less(patch: Patch) -> None:
    """Rule 11."""
    standing = State.standing

    def less(self: State, now: float) -> Standing:
        real = standing(self, now)
        return replace(real, quorum=max(1, real.quorum - 1))

    patch.setattr(State, "standing", less)


def offers_that_die_with_their_session(patch: Patch) -> None:
    """Rule 11."""
    close = sessions.closed

    def closed(state: State, session: int) -> list[Effect]:
        slot = state.sessions.open[session].slot
        effects: list[Effect] = []
        for each in state.rounds.open.values():
            if each.closed_at is None and slot in each.complete:
                effects.append(rounds.drop(each.slice, each.complete.pop(slot)))
        return [*effects, *close(state, session)]

    patch.setattr(sessions, "closed", closed)


def offers_in_the_order_of_arrival(patch: Patch) -> None:
    """Rule 12."""
    patch.setattr(Round, "participants", property(lambda self: tuple(self.complete.values())))


def offers_that_say_more_than_they_hold(patch: Patch) -> None:
    """Rule 12."""
    send_offer = Transport._send_offer

    def boast(self: Transport, shard: int, offer: pb.Offer) -> None:
        offer.capture += 1
        offer.counters.steps += 1
        send_offer(self, shard, offer)

    patch.setattr(Transport, "_send_offer", boast)


def an_offer_merged_again(patch: Patch) -> None:
    """Rule 13."""
    kept: dict[tuple[str, int], tuple[Work, ...]] = {}
    merged = ShardValues.merged

    def again(
        self: ShardValues, fragment: int, head: Version, works: tuple[Work, ...], *, exact: bool
    ) -> Version:
        before = kept.get((self.process.name, fragment), ())
        kept[self.process.name, fragment] = works
        if before and len(works) == 1 and before[0].slot == works[0].slot:
            works = (replace(works[0], first=before[0].first),)
        return merged(self, fragment, head, works, exact=exact)

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

    def lowest(holders: Any, failures: Any, fragment: int) -> Any:
        few = sorted(holders, key=lambda each: each.number)[:1]
        return choose(few, failures, fragment)

    patch.setattr(recovery_rules, "choose", lowest)


def numbers_that_begin_again_after_a_loss(patch: Patch) -> None:
    """Rule 21: and learners that take the newest term's, whatever its number."""
    patch.setattr(recovery_rules, "number", lambda state, held: 1)
    for module in (slices, adoption):
        patch.setattr(module, "order", lambda version: (version.epoch, version.number))


def a_tape_that_is_not_filled(patch: Patch) -> None:
    """Rule 29."""

    async def nothing(self: Driver) -> None:
        return

    patch.setattr(Driver, "_fill_tape", nothing)


def calls_that_outlive_their_session(patch: Patch) -> None:
    """Rule 11: a Call that died with its session is made again."""
    patch.setattr(rounds, "session_closed", lambda state, slot: None)


def due_ticks_that_start_nothing_at_times(patch: Patch) -> None:
    """Rule 9."""
    starts = schedule.starts

    def few(sync: Any, tick: int, started: Any) -> list[tuple[int, int]]:
        return [(fragment, due) for fragment, due in starts(sync, tick, started) if tick - due > 2]

    patch.setattr(schedule, "starts", few)


def a_grace_of_many_steps(patch: Patch) -> None:
    """Rule 11."""
    standing = State.standing

    def long(self: State, now: float) -> Standing:
        return replace(standing(self, now), grace_seconds=9.0)

    patch.setattr(State, "standing", long)


def a_grace_that_is_cut_short(patch: Patch) -> None:
    """Rule 11."""

    def hasty(each: Round, *, awaited: Any, quorum: int, now: float) -> Any:
        return decide(each, awaited=awaited, quorum=quorum, now=now + 0.3)

    patch.setattr(rounds, "decide", hasty)


def offers_that_never_leave(patch: Patch) -> None:
    """Rule 11: the slice stands still while its quorum is alive."""
    send_offer = Transport._send_offer

    def some(self: Transport, shard: int, offer: pb.Offer) -> None:
        if offer.slice > 0 or offer.base == 0:
            send_offer(self, shard, offer)

    patch.setattr(Transport, "_send_offer", some)


def last_rounds_that_wait_for_their_deadline(patch: Patch) -> None:
    """Rule 27."""

    def patient(each: Round, *, awaited: Any, quorum: int, now: float) -> Any:
        if each.deadline is not None and now < each.deadline:
            return RoundDecision(False, "waits")
        return decide(each, awaited=awaited, quorum=quorum, now=now)

    patch.setattr(rounds, "decide", patient)


def a_clock_that_counts_every_other_step(patch: Patch) -> None:
    """Rule 8."""
    advance = Clock.advance
    count = 0

    def half(self: Clock, slot: str, steps: int) -> None:
        nonlocal count
        count += 1
        advance(self, slot, steps if count % 2 else 0)

    patch.setattr(Clock, "advance", half)


def joins_that_name_the_lowest_tick(patch: Patch) -> None:
    """Rule 3."""

    def lowest(self: learner_state.State) -> int:
        return min((each.tick for each in self.shards), default=0)

    patch.setattr(learner_state.State, "tick_seen", property(lowest))


def tokens_that_count_again_in_each_session(patch: Patch) -> None:
    """Rule 35."""
    take = Slot.take

    def twice(self: Slot, report: pb.Report, now: float) -> int:
        self.tokens_before += report.tokens
        return take(self, report, now)

    patch.setattr(Slot, "take", twice)


def runs_that_are_not_compared(patch: Patch) -> None:
    """Rule 2: a learner of a former run is welcomed, and brings its tick."""
    check = sessions.check

    def lenient(join: pb.Join, *others: Any) -> pb.End | None:
        join.ClearField("run")
        return check(join, *others)

    patch.setattr(sessions, "check", lenient)
    patch.setattr(sessions, "_may_have_given", lambda join, history: True)


def words_that_count_whatever_their_number(patch: Patch) -> None:
    """Rule 4."""
    requested = runs.requested

    def renumbered(state: State, token: int, request: Any) -> list[Effect]:
        if isinstance(request, pb.SetOwnerRequest):
            owned = state.history.owned.get(request.slot)
            request.word = owned.word if owned else 0
        return requested(state, token, request)

    patch.setattr(runs, "requested", renumbered)


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


def a_data_state_that_stays_when_its_cursor_moves(patch: Patch) -> None:
    """Rule 28."""
    merge = History._merge

    def stays(self: History, fragment: int, each: Merged, data_state: str = "") -> None:
        merge(self, fragment, each, data_state or self.data_states.get(each.slot, ""))

    patch.setattr(History, "_merge", stays)


def the_durable_data_state_for_a_cursor_under_way(patch: Patch) -> None:
    """Rule 28."""
    cursor = rounds.cursor

    def mixed(state: State, slot: str) -> tuple[int, bytes | None]:
        return cursor(state, slot)[0], state.rounds.data_states.get(slot)

    patch.setattr(rounds, "cursor", mixed)


def late_work_that_counts_as_overlap(patch: Patch) -> None:
    """Rule 13's law."""

    def kinder(*arguments: Any, **fields: Any) -> slices.Outcome:
        became = slices.outcome(*arguments, **fields)
        return replace(became, overlap=became.overlap + became.late, late=0)

    patch.setattr(adoption, "outcome", kinder)


def an_export_that_waits_for_no_companion(patch: Patch) -> None:
    """Rule 36."""
    patch.setattr(companions, "is_awaited", lambda state: False)


def a_companion_that_counts_as_unneeded(patch: Patch) -> None:
    """Rule 36: the next term sweeps it."""
    live = History.live_objects

    def versions(self: History) -> set[str]:
        return live(self) - {*self.companion, *self.companion_changed}

    patch.setattr(History, "live_objects", versions)


def last_rounds_of_nothing_that_leave_what_is_rounded(patch: Patch) -> None:
    """Rule 17."""
    patch.setattr(rounds, "_is_rounded", lambda state, fragment: False)


def a_last_version_that_is_rounded(patch: Patch) -> None:
    """Rule 17."""
    merged = ShardValues.merged

    def rounded(
        self: ShardValues, fragment: int, head: Version, works: tuple[Work, ...], *, exact: bool
    ) -> Version:
        return merged(self, fragment, head, works, exact=exact and not works)

    patch.setattr(ShardValues, "merged", rounded)


def a_final_that_names_the_version_before(patch: Patch) -> None:
    """Rule 27."""

    def final(state: State) -> pb.ToLearner:
        versions = state.heads()
        for each in versions:
            each.version.number -= 1
        return pb.ToLearner(final=pb.Final(versions=versions))

    patch.setattr(ending, "final", final)


PLANTS = (
    Plant(rule="1", plant=commits_without_the_mark),
    Plant(rule="1", plant=seeds_that_depend_on_their_sender),
    Plant(rule="2", plant=a_registrar_that_asks_no_shard, seed=29),
    Plant(rule="4", plant=admission_beside_a_live_session, seed=2),
    Plant(rule="4", plant=welcome_before_it_is_durable),
    Plant(rule="5", plant=zombie_offers_that_stay, seed=189),
    Plant(rule="5", plant=steps_before_all_have_welcomed, seed=0),
    Plant(rule="8", plant=every_step_of_anybody_ticks, seed=8),
    Plant(rule="8", plant=a_clock_that_forgets_its_log),
    Plant(rule="10", plant=offers_without_a_call, seed=0),
    Plant(rule="10", plant=calls_to_every_slot_with_a_session, seed=4),
    Plant(rule="11", plant=a_quorum_of_one_less, seed=12),
    Plant(rule="11", plant=offers_that_die_with_their_session, seed=12),
    Plant(rule="12", plant=offers_in_the_order_of_arrival, seed=0),
    Plant(rule="12", plant=offers_that_say_more_than_they_hold),
    Plant(rule="13", plant=an_offer_merged_again),
    Plant(rule="13", plant=a_publish_that_does_not_name_what_was_merged),
    Plant(rule="13 (law)", plant=another_capture_is_told_as_merged),
    Plant(rule="19", plant=entries_that_count_before_they_are_durable),
    Plant(rule="19", plant=a_restart_from_the_version_before),
    Plant(rule="19", plant=a_collection_of_what_is_alive),
    Plant(rule="19", plant=a_sweep_in_every_term, seed=1337),
    Plant(rule="19", plant=a_recovery_without_those_that_were_turned_away, seed=1445),
    Plant(rule="20", plant=a_store_that_overwrites, seed=127),
    Plant(rule="20", plant=epochs_that_stand_still),
    Plant(rule="21", plant=numbers_that_begin_again_after_a_loss, seed=5),
    Plant(rule="22", plant=a_seed_for_what_was_lost, seed=233),
    Plant(rule="22", plant=a_recovery_of_who_comes_first, seed=239),
    Plant(rule="29", plant=a_tape_that_is_not_filled),
    Plant(rule="9 and 10 (called)", plant=calls_that_outlive_their_session, seed=10),
    Plant(rule="9 and 10 (called)", plant=due_ticks_that_start_nothing_at_times, seed=0),
    Plant(rule="11 (close)", plant=a_grace_of_many_steps, seed=24),
    Plant(rule="11 (close)", plant=a_grace_that_is_cut_short, seed=12),
    Plant(rule="11 (progress)", plant=calls_that_outlive_their_session, seed=94),
    Plant(rule="11 (progress)", plant=offers_that_never_leave, seed=12),
    Plant(rule="27", plant=last_rounds_that_wait_for_their_deadline, seed=0),
    Plant(rule="8 (lower bound)", plant=a_clock_that_counts_every_other_step, seed=0),
    Plant(rule="3 (tick seen)", plant=joins_that_name_the_lowest_tick),
    Plant(rule="35", plant=tokens_that_count_again_in_each_session, seed=7),
    Plant(rule="2 (old run)", plant=runs_that_are_not_compared, seed=127),
    Plant(rule="4 (word)", plant=words_that_count_whatever_their_number, seed=23),
    Plant(rule="28", plant=learners_that_begin_their_data_again),
    Plant(rule="28 (data state)", plant=the_data_state_of_the_last_welcome),
    Plant(rule="28 (data state)", plant=a_data_state_that_stays_when_its_cursor_moves, seed=50),
    Plant(rule="28 (data state)", plant=the_durable_data_state_for_a_cursor_under_way, seed=58),
    Plant(rule="13 (law)", plant=late_work_that_counts_as_overlap, seed=5),
    Plant(rule="27 (values)", plant=last_rounds_of_nothing_that_leave_what_is_rounded),
    Plant(rule="27 (values)", plant=a_last_version_that_is_rounded),
    Plant(rule="27 (values)", plant=a_final_that_names_the_version_before),
    Plant(rule="36", plant=an_export_that_waits_for_no_companion),
    Plant(rule="36", plant=a_companion_that_counts_as_unneeded),
)
