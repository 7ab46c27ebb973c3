"""Rules 30, 31 and 35: learners of several ranks, of which the head alone speaks with the job."""

from collections import defaultdict
from functools import partial
from itertools import chain
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.names import COUNTER_MAX, REGISTRAR_SHARD
from atoll_syncer.model.log import Committed, Entry, Taken
from atoll_worker.link.messages import Start
from atoll_worker.ranks.control import HEAD
from atoll_worker.ranks.lifeline import BEAT_SECONDS, END_SECONDS
from sim.learner_process import LearnerProcess
from sim.rank import Part, Rank
from sim.rank_group import RankGroup
from sim.shard_process import ShardProcess
from sim.symbols import Key
from sim.watch import Watcher
from sim.world import World

Given = tuple[str, int]  # slot, incarnation
LATE_SECONDS = 4 * BEAT_SECONDS  # of beats, and of the word that a stream has ended


class LostRankChecker(Watcher):
    """Rule 30: nobody goes on without the head, nor the head without anybody; nothing counts."""

    rule = "30"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.groups: dict[Given, RankGroup] = {}
        self.logs: dict[int, set[Given]] = defaultdict(set)  # by shard
        self.heads: dict[Key, str] = {}  # digests
        self.incarnations: dict[str, int] = {}
        self.steps: dict[str, dict[int, int]] = defaultdict(dict)  # by group and rank
        self.end_seconds_max = world.scenario.silence_seconds + END_SECONDS + LATE_SECONDS

    def rank_obeys(self, rank: Rank, commands: list[Any]) -> None:
        """All ranks of a group are one incarnation, and no other group is it."""
        for command in commands:
            if isinstance(command, Start):
                name, found = rank.group.name, command.incarnation
                known = self.incarnations.setdefault(name, found)
                self.require(known == found, f"{name} is incarnation {known} and {found}")
                owner = self.groups.setdefault((rank.slot, found), rank.group).name
                self.require(owner == name, f"{owner} and {name} are incarnation {found}")

    def store_lost(self, shard: int) -> None:
        self.logs.pop(shard, None)
        self.heads = {key: digest for key, digest in self.heads.items() if key[0] != shard}

    def _given(self, shard: int, given: Given) -> None:
        """What was given is given again where no log, process or version names it (rules 2, 4)."""
        known = any(given in log for log in self.logs.values())
        if shard == REGISTRAR_SHARD and not known and not self._is_named(given):
            self.groups.pop(given, None)
        self.logs[shard].add(given)

    def _is_named(self, given: Given) -> bool:
        group = self.groups.get(given)
        if group is not None and any(rank.process.alive for rank in group.ranks):
            return True
        held = (each.bases.values() for each in self.world.all_learners if each.alive)
        values = [*chain(*held), *map(self.world.values.__getitem__, self.heads.values())]
        return any(
            (work.slot, work.incarnation) == given
            for value in values
            for version in value.lineage()
            for work in version.merged
        )

    def rank_stepped(self, rank: Rank) -> None:
        self.steps[rank.group.name][rank.number] = rank.counts.own_steps

    def rank_ended(self, rank: Rank) -> None:
        code, name = rank.exit_code, rank.process.name
        if code == 0:
            self.require(rank.state.finished, f"{name} leaves before the end of the job")
            return
        known = (None, rank.refused_with, ExitCode.TRY_AGAIN)
        self.require(code in known, f"{name} has lost a rank and ends with {code}")
        for other in rank.group.ranks:
            if other is not rank and HEAD in (rank.number, other.number):
                self._look_later(rank, other, self.world.sim.now)

    def entry_durable(self, shard: int, entry: Entry, document: dict[str, Any]) -> None:
        """What is merged was trained by all ranks: after a loss no step is made by all."""
        if isinstance(entry, Taken):
            self._given(shard, (entry.slot, entry.incarnation))
        if isinstance(entry, Committed):
            self.heads[shard, entry.slice] = entry.digest
        if not isinstance(entry, Committed) or not entry.participants:
            return
        for work in self.world.values[entry.digest].merged:
            group = self.groups.get((work.slot, work.incarnation))
            if group is not None:
                name, made = group.name, self.steps[group.name]
                least = min(made.get(n, 0) for n in range(self.world.scenario.ranks[work.slot]))
                fits = work.last <= least
                self.require(fits, f"{work} of {name} is merged, some rank made {least} steps")

    def _look_later(self, lost: Rank, rank: Rank, since: float) -> None:
        """Look whether the rank has ended, when it has been able to for long enough."""
        look = partial(self._look, lost, rank, since)
        self.world.sim.at(max(since + self.end_seconds_max, self.world.sim.now + 1.0), look)

    def _look(self, lost: Rank, rank: Rank, since: float) -> None:
        process = rank.process
        if process.alive and (process.paused or process.woke_at > since):
            self._look_later(lost, rank, max(since, process.woke_at))
        elif rank.exit_code is None:
            ends = f"{lost.process.name} has ended at {since:.2f}"
            self.require(not process.alive, f"{ends}, and {process.name} goes on")


class OneOrderChecker(Watcher):
    """Rule 31: every rank carries out the head's commands at the same boundary, in its order."""

    rule = "31"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.boundaries: dict[tuple[str, int], int] = defaultdict(int)  # group, rank: how many
        self.carried_out: dict[tuple[str, int], tuple[int, list[Any]]] = {}  # steps, commands

    def rank_obeys(self, rank: Rank, commands: list[Any]) -> None:
        name, number = rank.group.name, self.boundaries[rank.group.name, rank.number]
        self.boundaries[name, rank.number] += 1
        mine = rank.counts.own_steps, commands
        others = self.carried_out.setdefault((name, number), mine)
        self.require(
            mine == others,
            f"boundary {number} of {name}: {rank.process.name} carries out {mine}, not {others}",
        )

    def captured(self, rank: Rank, key: Key, parts: dict[int, Part]) -> None:
        """All parts of a capture are of one version, and of one boundary."""
        count = len(rank.group.ranks)
        self.require(len(parts) == count, f"{key} of {rank.process.name} has parts {parts}")
        same = len(set(parts.values())) == 1
        self.require(same, f"{key} of {rank.process.name} is of {parts}")


class HeadCountsChecker(Watcher):
    """Rule 35: tokens and cursor are those of the head's script, on all ranks and at the shards."""

    rule = "35 (head)"

    def rank_counted(self, rank: Rank) -> None:
        """A rank knows what the head has counted until its last step."""
        assert rank.state.start is not None
        counts, steps = rank.counts, rank.counts.own_steps
        truth = steps * self.world.scenario.tokens_per_step, rank.state.start.cursor + steps
        said = counts.tokens, counts.cursor
        self.require(said == truth, f"{rank.process.name} goes on with {said}, not {truth}")

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        learner = shard.peers[session].learner if session in shard.peers else None
        if learner is None or not self._has_ranks(learner) or not message.HasField("report"):
            return
        said, steps = message.report.tokens, learner.training.t_m
        if said > COUNTER_MAX:
            return  # a lie, of which rule 38 speaks
        most = steps * self.world.scenario.tokens_per_step
        self.require(said <= most, f"{learner.name} reports {said} tokens of {steps} steps")

    def handed_over(self, learner: LearnerProcess, key: Key, offer: pb.Offer) -> None:
        counters, tokens = offer.counters, self.world.scenario.tokens_per_step
        self.require(
            counters.tokens == counters.steps * tokens or not self._has_ranks(learner),
            f"{learner.name} offers {counters.tokens} tokens of {counters.steps} steps",
        )

    def _has_ranks(self, learner: LearnerProcess) -> bool:
        return learner.slot in self.world.scenario.ranks
