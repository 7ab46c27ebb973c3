"""Rules 8 to 11 and 27 from the other side: what must happen, does happen, and in time.

Faults make many things late that are allowed to be. So each of these checkers judges only what
nothing stood in the way of: sessions, machines, stores and networks that were well all the while.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from atoll_protos.job.run_file import GraceLimit
from atoll_protos.job.schedule import start_distance
from atoll_syncer.model.effects import Effect, MergeOffers
from atoll_syncer.model.history import HeadVersion
from atoll_syncer.model.log import Committed, Entry, Seeded
from atoll_syncer.model.roster import STALL_STEPS, Round
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules import publishing
from atoll_syncer.rules.ending import LAST_ROUND_SECONDS
from sim.checkers.facts import Facts, RoundWatcher, Told
from sim.scenario import SLOW_SECONDS
from sim.shard_process import ShardProcess
from sim.world import World

PROMPT_SECONDS = 0.8  # the rules look at everything four times a second


class CallChecker(RoundWatcher):
    """Rules 9 to 11: a due slice calls whoever can answer, while its quorum is not complete."""

    rule = "9 and 10 (called)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.since: dict[tuple[str, str, int], float] = {}  # wanted: process, instance, slice
        self.due: dict[tuple[int, int], int] = {}

    def store_lost(self, shard: int) -> None:
        self.due = {key: due for key, due in self.due.items() if key[0] != shard}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        """Rule 9: at least H/2 ticks lie between two due ticks of a slice."""
        if isinstance(entry, Seeded):
            self.due.update({(shard, n): 0 for n in range(len(entry.digests))})
        if isinstance(entry, Committed):
            before, self.due[shard, entry.slice] = self.due.get((shard, entry.slice), 0), entry.due
            fits = entry.due - before >= start_distance(self.sync)
            put_off = bool(self.world.scenario.lengths)  # a last round became one like others
            drives = not (self.sync.lockstep or entry.recovered or entry.last or put_off)
            self.require(fits or not drives, f"shard {shard}: {before}, then {entry.due} is due")

    def look(self, shard: ShardProcess, facts: Facts, now: float) -> None:
        assert shard.shard is not None
        wanted = set()
        for fragment in shard.shard.state.history.heads:
            if not self._collects(shard, facts, fragment):
                continue
            each = shard.shard.state.rounds.open.get(fragment)
            refused = each.refused if each is not None else set()
            for slot, told in facts.current().items():
                missing = slot not in facts.complete[fragment]
                if missing and slot not in refused and self._can_answer(shard, told, fragment):
                    wanted.add((shard.name, told.learner.instance, fragment))
        self.since = {
            key: at for key, at in self.since.items() if key[0] != shard.name or key in wanted
        }
        for key in sorted(wanted):
            since = max(self.since.setdefault(key, now), shard.woke_at)
            late = now - since > PROMPT_SECONDS
            self.require(not late, f"{key} is due at {facts.tick}, and no Call since {since:.2f}")

    def _collects(self, shard: ShardProcess, facts: Facts, fragment: int) -> bool:
        """Whether a round of the slice is due and has no quorum yet."""
        missing = len(facts.complete[fragment]) < self.quorum
        under_way = self.under_way(shard, facts, fragment)
        return missing and not under_way and self.is_due(shard, facts, fragment)

    def _can_answer(self, shard: ShardProcess, told: Told, fragment: int) -> bool:
        """Whether this session is usable, and has no Call that it may still answer."""
        assert shard.shard is not None
        head, report = shard.shard.state.history.heads[fragment], told.report
        progress = {each.slice: each for each in report.slices}.get(fragment)
        if progress is None or not told.trains(self.world.sim.now):
            return False
        holds = progress.held == head.number and head.digest.startswith(progress.digest)
        near = report.tick_seen <= shard.shard.state.clock.tick + 4 * self.sync.period
        asked = told.owes(fragment, head.number) or fragment in told.sending
        return holds and progress.since.steps >= 1 and near and not asked


class CloseChecker(RoundWatcher):
    """Rule 11: a round closes when all called are complete or the grace is over, and then."""

    rule = "11 (close)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.quorum_at: dict[tuple[str, int], float] = {}
        self.all_since: dict[tuple[str, int], float] = {}
        self.here_since: dict[tuple[str, int], float] = {}  # a slice that was read back
        self.longer_since: dict[str, float] = {}  # a job whose last rounds became ordinary ones

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if self.is_over(shard):
            self.longer_since[shard.name] = self.world.sim.now
        super().shard_did(shard, effects)

    def look(self, shard: ShardProcess, facts: Facts, now: float) -> None:
        assert shard.shard is not None
        for fragment, head in shard.shard.state.history.heads.items():
            key = shard.name, fragment
            count = len(facts.complete[fragment])
            unread = self.is_unread(shard, fragment)
            if unread:
                self.here_since[key] = now
            if unread or self.under_way(shard, facts, fragment) or count < self.quorum:
                self.all_since.pop(key, None)
                continue
            here = max(self.here_since.get(key, 0.0), self.longer_since.get(shard.name, 0.0))
            since = max(self._kth(facts, fragment), shard.woke_at, here)
            bound = since + self._grace_seconds_max(facts) + PROMPT_SECONDS
            self.require(now <= bound, f"{key} has its quorum since {since:.2f} and stays open")
            awaited = [*self._awaited(facts, fragment, head.number, now)]
            if awaited or self._first_steps(facts, fragment, head):
                self.all_since.pop(key, None)
                continue
            began = max(self.all_since.setdefault(key, now), shard.woke_at)
            late = now - began > PROMPT_SECONDS
            self.require(not late, f"{key} waits for nobody since {began:.2f} and stays open")

    def merges(self, shard: ShardProcess, facts: Facts, merge: MergeOffers) -> None:
        if not self.counts(shard):
            return
        assert shard.shard is not None
        now, state = self.world.sim.now, shard.shard.state
        each = state.rounds.open[merge.slice]
        new = self._first_steps(facts, merge.slice, state.history.heads[merge.slice])
        those = [*self._awaited(facts, merge.slice, each.base, now)]
        longest = STALL_STEPS * state.clock.step_seconds  # 0 as long as the shard knows of no step
        those += [
            told
            for told in new
            if told.trains(now)
            and told.slot not in each.refused
            and (told.report.step_seconds or now - told.stepped_at <= longest)
        ]
        awaited = [told.slot for told in those if self._in_time(state, each, told.slot)]
        if awaited:
            over = self._kth(facts, merge.slice) + each.grace_seconds
            early = now < over - 1e-6
            self.require(not early, f"{shard.name} closes {each.slice} without {awaited}")

    def _in_time(self, state: ShardState, each: Round, name: str) -> bool:
        slot = state.sessions.slots[name]
        called = name in each.called and each.quorum_at is not None
        comes = not called or each.comes_in_time(name, slot.offer_time)
        return comes and not state.is_too_slow(slot)

    def _kth(self, facts: Facts, fragment: int) -> float:
        """When the K-th offer of those that are complete was."""
        times = sorted(facts.complete[fragment].values())
        return times[min(self.quorum, len(times)) - 1]  # K falls by the slots that were refused

    def _awaited(self, facts: Facts, fragment: int, base: int, now: float) -> Iterable[Told]:
        """Those who were called, train, and may still answer."""
        for slot, told in facts.current().items():
            missing = slot not in facts.complete[fragment]
            if missing and told.owes(fragment, base) and told.trains(now):
                yield told

    def _first_steps(self, facts: Facts, fragment: int, head: HeadVersion) -> list[Told]:
        """Those who hold the base and train, and have made no step since."""
        found = []
        for slot, told in facts.current().items():
            progress = {each.slice: each for each in told.report.slices}.get(fragment)
            if progress is None or progress.since.steps or slot in facts.complete[fragment]:
                continue
            if told.report.training and publishing.is_version(progress, head):
                found.append(told)
        return found

    def _grace_seconds_max(self, facts: Facts) -> float:
        """One step, or H / 2: two learners at least, one of which is missing."""
        steps = 1.0 if self.sync.grace_limit is GraceLimit.OVERLAP else self.sync.period / 2
        reports = (told.report.step_seconds for told in facts.sessions.values())
        return max(reports, default=0.0) * steps * self.sync.grace


class SteadyWatcher(RoundWatcher):
    """Since when each learner has been well at each shard, and each shard itself."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By process and slot: an instance, and since when.
        self.learners: dict[str, dict[str, tuple[str, float]]] = defaultdict(dict)
        self.shards: dict[str, float] = {}

    def steady(self, shard: ShardProcess, facts: Facts, now: float) -> list[float]:
        """Since when each learner that is well has been so, the longest first; the shard too."""
        if not self._shard_is_well(shard):
            self.shards[shard.name] = now
        began = max(self.shards.setdefault(shard.name, now), shard.woke_at)
        current, mine = facts.current(), self.learners[shard.name]
        for slot in self.world.run_file.slots:
            told = current.get(slot)
            if told is None or not self._is_well(shard, told, now):
                mine.pop(slot, None)
                continue
            instance = told.learner.instance
            known, since = mine.get(slot, ("", now))
            mine[slot] = instance, since if known == instance else now
        return sorted(max(since, began) for _, since in mine.values())

    def seconds(self, facts: Facts) -> float:
        """What a round takes on these machines, generously."""
        scenario = self.world.scenario
        network = (
            12 * scenario.delay_seconds + 8 * scenario.slice_seconds * self.sync.fragment_count
        )
        if scenario.slow:  # each slice goes up and down, behind those of the other fragments
            network += 4 * max(SLOW_SECONDS) * self.sync.fragment_count
        disk = 4 * scenario.disk_seconds + scenario.merge_seconds * self.sync.fragment_count
        examine = 2 * scenario.examine_seconds * len(self.world.run_file.slots)
        steps = max((each.report.step_seconds for each in facts.sessions.values()), default=0.0)
        return 2.0 + network + disk + examine + 3 * steps

    def _shard_is_well(self, shard: ShardProcess) -> bool:
        store, blocked = self.world.stores[shard.number], self.world.weather.blocked_until
        reached = blocked.get(f"shard{shard.number}", 0.0) <= self.world.sim.now
        well = not store.is_in_trouble and not self.world.weather.damaged_share
        return shard.alive and not shard.paused and reached and well

    def _is_well(self, shard: ShardProcess, told: Told, now: float) -> bool:
        learner = told.learner
        blocked = self.world.weather.blocked_until.get(learner.slot, 0.0) > now
        broken = self.world.is_broken(learner, shard)
        works = learner.is_whole and not learner.training.finished
        return works and told.trains(now) and not blocked and not broken


class ProgressChecker(SteadyWatcher):
    """Rule 11: while a quorum of usable learners is alive, a slice commits within 2H ticks."""

    rule = "11 (progress)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.moved: dict[tuple[str, int], tuple[int, float]] = {}  # number of the head, since

    def look(self, shard: ShardProcess, facts: Facts, now: float) -> None:
        assert shard.shard is not None
        well = self.steady(shard, facts, now)
        for fragment, head in shard.shard.state.history.heads.items():
            key = shard.name, fragment
            unread = self.is_unread(shard, fragment)
            if self.moved.get(key, (-1, 0.0))[0] != head.number or self._behind(facts) or unread:
                self.moved[key] = head.number, now
            if len(well) < self.quorum:
                self.moved[key] = head.number, now
                continue
            since = max(self.moved[key][1], well[self.quorum - 1])
            passed = facts.tick - self._tick_at(facts, since)
            slow = passed > 2 * self.sync.period + 2 and now - since > self.seconds(facts)
            self.require(not slow, f"{key} has no commit in {passed} ticks since {since:.2f}")

    def _behind(self, facts: Facts) -> bool:
        """Rule 14: learners that have seen another shard far ahead are not usable here."""
        far = facts.tick + 4 * self.sync.period
        return any(told.report.tick_seen > far for told in facts.sessions.values())

    def _tick_at(self, facts: Facts, when: float) -> int:
        return max((tick for at, tick in facts.ticks if at <= when), default=facts.tick)


class LastRoundChecker(SteadyWatcher):
    """Rule 27: no last round needs its deadline when all learners are well."""

    rule = "27"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.over_at: dict[str, float] = {}
        self.disturbed: set[str] = set()

    def counts(self, shard: ShardProcess) -> bool:
        """In the last rounds alone; a longer job may put them off."""
        over = self.is_over(shard)
        if not over:
            self.over_at.pop(shard.name, None)
        return self.serves(shard) and over

    def look(self, shard: ShardProcess, facts: Facts, now: float) -> None:
        began = self.over_at.setdefault(shard.name, now)
        well = self.steady(shard, facts, now)
        slots = len(self.world.run_file.slots)
        assert shard.shard is not None
        if len(well) < slots or well[-1] > began or not shard.shard.state.is_whole:
            self.disturbed.add(shard.name)
        if shard.name not in self.disturbed and self.seconds(facts) < LAST_ROUND_SECONDS:
            late = now - began > max(self.seconds(facts), LAST_ROUND_SECONDS - 1.0)
            self.require(not late, f"{shard.name}: last rounds go on since {began:.2f}")


class ClockChecker(SteadyWatcher):
    """Rule 8: the clock is no slower than the steps of K learners."""

    rule = "8 (lower bound)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.began: dict[str, tuple[int, dict[str, tuple[str, int]]]] = {}  # tick; instance, t_m
        self.last: dict[str, dict[str, tuple[str, int]]] = {}
        self.somebody_claims = any(each.kind == "claim" for each in world.scenario.faults)

    def look(self, shard: ShardProcess, facts: Facts, now: float) -> None:
        if self.somebody_claims:
            return  # steps that were not made count no more than they can have been (rule 39)
        self.steady(shard, facts, now)
        well = {
            slot: (instance, facts.current()[slot].report.t_m)
            for slot, (instance, _) in self.learners[shard.name].items()
        }
        tick, before = self.began.get(shard.name, (facts.tick, well))
        same = {slot: instance for slot, (instance, _) in before.items()}
        last, self.last[shard.name] = self.last.get(shard.name, well), well
        # One report moves the clock by a period at most, as after a cut of the link (rule 39).
        far = any(well[slot][1] - last[slot][1] > self.sync.period for slot in well.keys() & last)
        if far or same != {slot: instance for slot, (instance, _) in well.items()}:
            tick, before = facts.tick, well
        self.began[shard.name] = tick, before
        if len(well) < self.quorum:
            return
        steps = sorted((well[slot][1] - t_m for slot, (_, t_m) in before.items()), reverse=True)
        done = steps[self.quorum - 1]
        least = tick + done - self.sync.period - 3
        self.require(facts.tick >= least, f"{shard.name}: tick {facts.tick}, not {least}")
