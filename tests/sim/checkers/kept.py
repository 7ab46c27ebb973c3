"""Rules 2 to 4, 28 and 35: what is said once is kept: ticks, words, cursors, tokens, the run."""

from collections import Counter, defaultdict
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.model.effects import Append, Effect, EndSession
from atoll_syncer.model.log import Committed, Ended, Entry, Owned, Seeded
from atoll_syncer.model.state import ShardState
from atoll_worker.link.messages import Start
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.training_process import data_state_at
from sim.watch import Watcher
from sim.world import World


class SeenChecker(Watcher):
    """Rules 3 and 8: a Join names the highest tick that its learner has seen on any shard."""

    rule = "3 (tick seen)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.told: dict[str, int] = {}

    def learner_message(self, learner: LearnerProcess, shard: int, message: pb.ToLearner) -> None:
        if message.HasField("tick") and learner.exchange.state.shards[shard].welcomed:
            self.told[learner.name] = max(self.told.get(learner.name, 0), message.tick.tick)

    def learner_joins(self, learner: LearnerProcess, shard: int, join: pb.Join) -> None:
        told = self.told.get(learner.name, 0)
        self.require(join.tick_seen >= told, f"{learner.name} says {join.tick_seen}, not {told}")


class LengthChecker(Watcher):
    """Rules 27 and 35: a job whose length is in tokens does not end before they are trained."""

    rule = "35"

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        length, scenario = self.world.run_file.tokens, self.world.scenario
        if isinstance(entry, Ended) and length is not None:
            others = (scenario.length(n).tokens for n, _ in enumerate(scenario.lengths, 1))
            length = min((length, *others))
            _, trained = self.world.trained()
            self.require(trained >= length, f"shard {shard} ends at {trained} of {length} tokens")


class TokensChecker(Watcher):
    """Rule 35: a shard counts what was trained, never more, and no less than it has written.

    What it had heard when it made the entry of a version counts in every later process too. What
    its learners have told this process counts at once.
    """

    rule = "35 (tokens)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.heard: dict[str, Counter[str]] = defaultdict(Counter)  # by process, then instance
        self.written: dict[int, Counter[str]] = defaultdict(Counter)  # by shard, then instance
        self.under_way: dict[tuple[int, int, int, int], Counter[str]] = {}
        self.said: tuple[int, Counter[str]] | None = None  # session, what it told: not yet counted
        self.before = world.parent.trained if world.parent is not None else 0

    def store_lost(self, shard: int) -> None:
        self.written.pop(shard, None)

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        peer = shard.peers.get(session)
        if message.HasField("report") and peer is not None and peer.incarnation and not peer.ended:
            self.said = session, self.told(peer.learner.instance, message.report)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        heard, said, self.said = self.heard[shard.name], self.said, None
        ended = [each.session for each in effects if isinstance(each, EndSession)]
        if said is not None and said[0] not in ended:
            heard |= said[1]
        for effect in effects:
            if isinstance(effect, Append) and isinstance(effect.entry, Committed):
                self.under_way[self._key(shard.number, effect.entry)] = Counter(heard)
        newest = self.world.shards[shard.number] is shard
        if newest and shard.shard is not None and shard.shard.state.term.durable:
            self.look(shard, shard.shard.state, heard | self.written[shard.number])

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            self.written[shard] |= self.under_way.pop(self._key(shard, entry), Counter())
        if isinstance(entry, Seeded) and self.before:  # by then it knows what it begins with
            self.written[shard]["the run before"] = self.before

    def told(self, instance: str, report: pb.Report) -> Counter[str]:
        """What counts from now on, by who says it."""
        return Counter({instance: report.tokens})

    def look(self, shard: ShardProcess, state: ShardState, known: Counter[str]) -> None:
        counted = state.sessions.tokens
        _, tokens = self.world.trained()
        trained = self.before + tokens
        self.require(counted <= trained, f"{shard.name} counts {counted} tokens of {trained}")
        least = known.total()
        self.require(counted >= least, f"{shard.name} counts {counted} tokens, knows of {least}")

    def _key(self, shard: int, entry: Committed) -> tuple[int, int, int, int]:
        return shard, entry.slice, entry.number, entry.epoch


class OldRunChecker(Watcher):
    """Rule 2: a process of a former run is never welcomed as a learner, and moves nothing."""

    rule = "2 (old run)"

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        if shard.shard is not None:
            steps, _ = self.world.trained()
            most = self.world.first_tick + 2 * steps + 2 * self.world.run_file.sync.period
            tick = shard.shard.state.clock.tick
            self.require(tick <= most, f"{shard.name}: tick {tick} after {steps} steps in all")

    def learner_message(self, learner: LearnerProcess, shard: int, message: pb.ToLearner) -> None:
        run = message.welcome.run
        other = message.HasField("welcome") and learner.exchange.state.run not in ("", run)
        self.require(not other or learner.observer, f"{learner.name} is welcomed to another run")


class WordChecker(Watcher):
    """Rule 4: a word of the operator counts only with the number of the slot's last word."""

    rule = "4 (word)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.named: dict[tuple[str, str], set[int]] = {}  # numbers read before naming this pod
        self.last: dict[str, int] = {}

    def store_lost(self, shard: int) -> None:
        if shard == REGISTRAR_SHARD:
            self.last.clear()

    def owner_named(self, slot: str, uid: str, word: int) -> None:
        self.named.setdefault((slot, uid), set()).add(word)

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Owned):
            last, self.last[entry.slot] = self.last.get(entry.slot, 0), entry.generation
            read = self.named.get((entry.slot, entry.uid), set())
            self.require(last in read, f"{entry} after {last}, named with {sorted(read)}")
            self.require(entry.generation > last, f"{entry} after generation {last}")


class DataStateChecker(Watcher):
    """Rule 28: a learner gets the data state of the cursor with which it starts, or none."""

    rule = "28 (data state)"

    def commanded(self, learner: LearnerProcess, command: Any) -> None:
        if isinstance(command, Start) and not learner.observer:
            given, cursor = command.data_state, command.cursor
            right = given == data_state_at(learner.slot, cursor)
            lost = given is None and self.world.loses_a_store
            self.require(right or lost, f"{learner.name} starts at {cursor} with {given!r}")


class CursorChecker(Watcher):
    """Rule 28: a learner starts behind all data of its slot that is in a version."""

    rule = "28"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.cursors: dict[str, int] = {}

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            for part in entry.participants:
                self.cursors[part.slot] = max(self.cursors.get(part.slot, 0), part.cursor)

    def commanded(self, learner: LearnerProcess, command: Any) -> None:
        if isinstance(command, Start) and not self.world.loses_a_store:
            merged = self.cursors.get(learner.slot, 0)
            behind = command.cursor >= merged
            self.require(behind, f"{learner.name} starts at {command.cursor}, merged is {merged}")
