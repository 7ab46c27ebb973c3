"""Rules 8, 10, 11 and 12: the clock, credit, quorum, and what an offer is."""

from collections import Counter
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Drop, Effect, EndSession, MergeOffers, Send, Stage
from atoll_syncer.model.log import Committed, Entry
from atoll_worker.link.messages import Tick
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.symbols import Difference
from sim.watch import Watcher
from sim.world import World

DAMAGED_MAX = 3  # transfers of a slot, until rounds do without it


class TickChecker(Watcher):
    """Rule 8: no tick goes back, joining does not move it, and it is no faster than learners."""

    rule = "8"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.said: dict[str, int] = {}  # by process
        self.logged: dict[int, int] = {}  # by shard
        self.seen: dict[tuple[str, int], int] = {}  # process, session: tick_seen of its Join
        self.last_tick: dict[str, int] = {}
        self.joins: dict[str, tuple[str, int]] = {}  # process: who reports first; the tick

    def store_lost(self, shard: int) -> None:
        self.logged.pop(shard, None)

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            self.logged[shard] = max(entry.tick, self.logged.get(shard, 0))

    def shard_joined(self, shard: ShardProcess, session: int, join: pb.Join) -> None:
        self.seen[shard.name, session] = 0 if join.observer else join.tick_seen
        if shard.name not in self.said:
            assert shard.shard is not None
            self.said[shard.name] = self.logged.get(shard.number, 0)

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        assert shard.shard is not None
        state = shard.shard.state
        sender = state.sessions.open.get(session)
        if sender is not None and sender.slot not in state.clock.positions:
            self.joins[shard.name] = sender.slot, state.clock.tick

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        slot, tick = self.joins.pop(shard.name, ("", 0))
        clock = None if shard.shard is None else shard.shard.state.clock
        if clock is not None and slot in clock.positions and not self.world.run_file.sync.lockstep:
            self.require(clock.tick == tick, f"{shard.name}: {slot} joins, and it is {clock.tick}")
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            kind = effect.message.WhichOneof("kind")
            if kind == "welcome":
                welcome = effect.message.welcome
                seen = self.seen[shard.name, effect.session] if welcome.newest else 0
                assert shard.shard is not None
                confirmed = max(shard.shard.state.run.ticks.values(), default=0)
                seen = min(seen, confirmed)  # rule 39
                self.require(welcome.tick >= seen, f"{shard.name} says {welcome.tick} < {seen}")
                self._says(shard, welcome.tick)
            elif kind == "tick":
                self._says(shard, effect.message.tick.tick)

    def commanded(self, learner: LearnerProcess, command: Any) -> None:
        if isinstance(command, Tick):
            before = self.last_tick.get(learner.name, 0)
            self.require(command.tick >= before, f"{learner.name}: {command.tick} < {before}")
            self.last_tick[learner.name] = command.tick

    def _says(self, shard: ShardProcess, tick: int) -> None:
        before = self.said.get(shard.name, 0)
        self.require(tick >= before, f"{shard.name} goes from tick {before} to {tick}")
        self.said[shard.name] = tick
        if not self.world.scenario.faults:
            # A laggard that was drawn in may take the lead, so the bound is not sharp.
            most = max(learner.training.t_m for learner in self.world.all_learners)
            bound = self.world.first_tick + 1.25 * most + self.world.run_file.sync.period
            self.require(tick <= bound, f"tick {tick}, though no learner has done more than {most}")


class CreditChecker(Watcher):
    """Rule 10: a Call goes to who can answer it, and is the credit for one Offer."""

    rule = "10"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.lockstep = world.run_file.sync.lockstep
        self.credit: dict[tuple[str, int, int], int] = {}  # process, session, slice: base
        self.reports: dict[tuple[str, int], pb.Report] = {}

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        if message.HasField("report"):
            self.reports[shard.name, session] = message.report

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and effect.message.HasField("call"):
                self._called(shard, effect.session, effect.message.call)

    def offer_accepted(self, shard: ShardProcess, session: int, transfer: pb.Transfer) -> None:
        if self.lockstep:
            return
        offer = transfer.offer
        base = self.credit.pop((shard.name, session, offer.slice), None)
        self.require(base == offer.base, f"{shard.name} takes an offer that it has not called for")

    def _called(self, shard: ShardProcess, session: int, call: pb.Call) -> None:
        report = self.reports.get((shard.name, session), pb.Report())
        progress = {each.slice: each for each in report.slices}.get(call.slice)
        self.require(not self.lockstep, f"{shard.name} calls in lock-step")
        self.require(report.training, f"{shard.name} calls a learner that does not train")
        assert shard.shard is not None
        head = shard.shard.state.history.heads[call.slice].number
        fits = progress is not None and progress.held == call.base == head
        self.require(fits, f"{shard.name} calls for base {call.base} who holds {progress}")
        steps = progress.since.steps if progress is not None else 0
        self.require(steps >= 1, f"{shard.name} calls for an offer of no step")
        self.credit[shard.name, session, call.slice] = call.base


class QuorumChecker(Watcher):
    """Rule 11: K complete offers, and no complete offer is left behind.

    K falls by the slots whose transfers have come damaged three times.
    """

    rule = "11"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.damaged: Counter[tuple[str, str]] = Counter()  # by shard process and slot

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        staged = {(e.slot, e.slice) for e in effects if isinstance(e, Stage)}
        sync = self.world.run_file.sync
        for effect in effects:
            if isinstance(effect, Drop):
                assert shard.shard is not None
                taken = shard.shard.state.history.taken[effect.slot].incarnation
                reason = taken > effect.incarnation or (effect.slot, effect.slice) in staged
                reason |= bool(self.world.scenario.lists)  # who is shut out (rule 41)
                reason |= shard.shard.state.is_lost(effect.slice)  # as it was read back (rule 45)
                self.require(reason, f"{shard.name} drops a complete offer: {effect}")
            if isinstance(effect, EndSession) and effect.end.code == pb.BAD_TRANSFER:
                self.damaged[shard.name, shard.peers[effect.session].learner.slot] += 1
            if isinstance(effect, MergeOffers) and not sync.lockstep:
                assert shard.shard is not None
                count = len(effect.participants)
                assert isinstance(sync.quorum, int), "only modes that wait ask for all"
                refused = [who for who in self.damaged if who[0] == shard.name]
                least = sync.quorum - sum(self.damaged[who] >= DAMAGED_MAX for who in refused)
                enough = count >= max(1, least) or shard.shard.state.over
                self.require(enough, f"{shard.name} merges {count} of {sync.quorum}")

    def merging(
        self, shard: ShardProcess, merge: MergeOffers, offers: tuple[Difference | None, ...]
    ) -> None:
        left = sorted(name for name in shard.staged if name[2] == merge.slice)
        self.require(not left, f"{shard.name} leaves complete offers behind: {left}")


class OfferChecker(Watcher):
    """Rule 12: whole, on the head's own base, what it says it is, and summed in slot order."""

    rule = "12"

    def merging(
        self, shard: ShardProcess, merge: MergeOffers, offers: tuple[Difference | None, ...]
    ) -> None:
        slots = [part.slot for part in merge.participants]
        self.require(slots == sorted(slots), f"{shard.name} sums in the order {slots}")
        head = shard.heads[merge.slice].digest
        for part, offer in zip(merge.participants, offers, strict=True):
            if offer is None or offer.theta.work is None:
                self.require(False, f"{shard.name} merges {part}, which has not arrived whole")
                continue
            bases = {offer.base.digest, offer.theta.base.digest}
            self.require(bases == {head}, f"{part} is a difference between {bases}, not to {head}")
            work = offer.theta.work
            name = (work.slot, work.incarnation, work.key, work.steps)
            said = (part.slot, part.incarnation, (shard.number, merge.slice), part.steps)
            self.require(name == said, f"an offer said {said} and holds {work}")

    def arrived(self, whole: bool) -> None:
        self.require(whole, "values that are damaged count")
