"""Rule 13 as a shard shows it: every token of every slice in one count, over all restarts."""

from collections import Counter, defaultdict
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.log import Committed, Entry
from atoll_syncer.model.state import ShardState
from atoll_syncer.rules.offers import counts
from sim.checkers.kept import TokensChecker
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.world import World

LOOK_SECONDS = 1.0


class CountsChecker(TokensChecker):
    """Merged is what the entries name, overlap and late what learners have recorded.

    What a shard had heard when it made the entry of a version counts in every later process.
    """

    rule = "13 (counts)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.merged: Counter[int] = Counter()  # by shard, in all entries
        self.kept: Counter[int] = Counter()  # by shard, in those of its present store
        self.recorded_tokens: dict[int, Counter[str]] = defaultdict(Counter)  # by shard, then class
        self.looked_at: dict[str, float] = {}

    def store_lost(self, shard: int) -> None:
        super().store_lost(shard)
        self.kept.pop(shard, None)

    def told(self, instance: str, report: pb.Report) -> Counter[str]:
        told = report.settled
        return Counter({f"{instance} overlap": told.overlap, f"{instance} late": told.late})

    def recorded(self, learner: LearnerProcess, fields: dict[str, Any]) -> None:
        for record in fields.get("adopted", ()):
            known = self.recorded_tokens[record["shard"]]
            known.update({name: record[name] for name in ("overlap", "late")})

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        if isinstance(entry, Committed):
            tokens = sum(each.tokens for each in entry.participants)
            self.merged[shard] += tokens
            self.kept[shard] += tokens
            super().entry_durable(shard, entry, document)

    def look(self, shard: ShardProcess, state: ShardState, known: Counter[str]) -> None:
        now = self.world.sim.now
        if now < self.looked_at.get(shard.name, 0.0) + LOOK_SECONDS:
            return
        self.looked_at[shard.name] = now
        said, recorded = counts(state, now), self.recorded_tokens[shard.number]
        heard = dict.fromkeys(("overlap", "late"), 0)
        for key, tokens in known.items():
            heard[key.rpartition(" ")[2]] += tokens
        for name, least in heard.items():
            counted, most = getattr(said, name), recorded[name]
            fits = least <= counted <= most
            self.require(fits, f"{shard.name} has {counted} {name}, of {least} to {most} tokens")
        most = self.merged[shard.number]
        self.require(said.merged <= most, f"{shard.name} has {said.merged} merged, of {most}")
        _, trained = self.world.trained()
        most = said.slices * trained
        self.require(said.trained <= most, f"{shard.name} has {said.trained} trained, of {most}")

    def run_ended(self) -> None:
        for shard in self.world.shards:
            state = shard.shard.state if shard.alive and shard.shard is not None else None
            if state is None or not state.history.ended or self.world.scenario.loses_a_store:
                continue
            said, merged = counts(state, self.world.sim.now), self.kept[shard.number]
            self.require(said.merged == merged, f"{shard.name}: {said.merged} merged, of {merged}")
            least = said.slices * (state.sessions.tokens - self.before)
            self.require(said.trained >= least, f"{shard.name}: {said.trained} trained of {least}")
