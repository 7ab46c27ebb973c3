"""Rule 39: whatever one learner says of its steps, the tick stays near to what has been done."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.schedule import start_distance
from atoll_syncer.model.effects import Effect
from atoll_syncer.rules.rounds.clock import FASTER_THAN_OWN_MAX
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World


class ClaimChecker(Watcher):
    """Looks at each rise of a tick, and from which input it came.

    - *In lock-step* it stays near to the farthest true position.
    - *Elsewhere* a report moves it by the steps of the time since the last one, of a quarter of the
      learner's mean step time each, and two periods: one that was saved up, and one in which
      positions are drawn in.
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
        self.steps: dict[str, float | None] = {}  # process: what its present input's report allows

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        assert shard.shard is not None
        state = shard.shard.state
        sender = state.sessions.open.get(session)
        if sender is None or not message.HasField("report"):
            return
        key, now, step = (shard.name, sender.slot), self.world.sim.now, message.report.step_seconds
        elapsed = now - self.reported.get(key, now)
        self.steps[shard.name] = FASTER_THAN_OWN_MAX * elapsed / step if step else None
        if sender.slot in state.clock.positions:
            self.reported[key] = now

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if shard.shard is None:
            return
        allows = self.steps.pop(shard.name, 0.0)
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
