"""Rules 39 and 47: what one learner claims moves neither the tick nor the versions."""

from collections import Counter
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.schedule import start_distance
from atoll_syncer.model.effects import Effect, TapeLine
from atoll_syncer.model.log import Committed, Entry
from atoll_syncer.rules.calls import FASTER_THAN_OWN_MAX
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World


class VersionChecker(Watcher):
    """What is taken back was there once, and where nothing is lost no claim begins a recovery."""

    rule = "47"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.nothing_is_lost = any(each.kind == "false version" for each in world.scenario.faults)
        self.newest: Counter[tuple[int, int]] = Counter()  # shard, slice: that was ever durable

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            newest = self.newest[shard, entry.slice]
            self.require(entry.base <= newest, f"{entry} is made of what never was")
            self.newest[shard, entry.slice] = max(newest, entry.number)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        for effect in effects if self.nothing_is_lost else ():
            is_loss = isinstance(effect, TapeLine) and effect.record["event"] == "loss"
            self.require(not is_loss, f"{shard.name}: {effect}, and nothing is lost")


class ClaimChecker(Watcher):
    """Looks at each rise of a tick, and from which input it came.

    - *In lock-step* it stays near to the farthest true position.
    - *Elsewhere* a report moves it by the steps of the time since the last one, of a quarter of the
      learner's mean step time each, and two periods: one that was saved up, and one in which
      positions are drawn in. While a shard takes back what is lost its tick stands still, so the
      reports of that time count together.
    - *What comes in no report* moves it by that one period, or up to a tick that others know.
    """

    rule = "39"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sync = world.run_file.sync
        self.ticks: dict[str, int] = {}  # of each process
        self.reported: dict[
            tuple[str, str], float
        ] = {}  # process, slot: when a report last counted
        # by process, by slot: what reports allow that have moved no tick yet; None: any
        self.steps: dict[str, dict[str, float | None]] = {}

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        assert shard.shard is not None
        state = shard.shard.state
        sender = state.sessions.open.get(session)
        if sender is None or not message.HasField("report"):
            return
        key, now, step = (shard.name, sender.slot), self.world.sim.now, message.report.step_seconds
        elapsed = now - self.reported.get(key, now)
        allows = self.steps.setdefault(shard.name, {})
        before = allows.get(sender.slot, 0.0)
        moves = FASTER_THAN_OWN_MAX * elapsed / step if step else None
        allows[sender.slot] = None if before is None or moves is None else before + moves
        if sender.slot in state.clock.positions:
            self.reported[key] = now

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if shard.shard is None:
            return
        of = self.steps.get(shard.name, {}).values()
        allows = None if None in of else max((each for each in of if each is not None), default=0.0)
        if shard.shard.state.serving:
            self.steps.pop(shard.name, None)
        tick = shard.shard.state.clock.tick
        before = self.ticks.get(shard.name, tick)
        if tick > before + 1 and allows is not None:
            most = max(self._most(before, allows), self._known())
            self.require(tick <= most, f"{shard.name}: from tick {before} to {tick}, not {most}")
        self.ticks[shard.name] = tick

    def _most(self, before: int, steps: float) -> int:
        period = self.sync.period
        if not self.sync.lockstep:
            return before + int(steps) + (2 if steps else 1) * period
        positions = (
            each.exchange.state.progress.position
            for each in self.world.all_learners
            if not each.observer
        )
        first = start_distance(self.sync)
        return max(before, first, *positions) + self.sync.overlap + period

    def _known(self) -> int:
        """What other processes have reached, and what learners have seen in truth."""
        seen = (each.exchange.state.tick_seen for each in self.world.all_learners)
        return max((self.world.first_tick, *self.ticks.values(), *seen))
