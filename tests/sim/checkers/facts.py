"""What a shard process was told and what it has sent, as far as rounds are concerned.

`RoundWatcher` gathers it for the checkers of progress. It counts for the process that owns the
shard while that process serves; a process that stood still begins again.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.schedule import newest_due, start_distance
from atoll_syncer.model.effects import Drop, Effect, EndSession, MergeOffers, Send, Stage, TapeLine
from atoll_syncer.model.roster import STALL_SECONDS_MIN, STALL_STEPS
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World

LOOK_SECONDS = 0.2  # between two looks at one process


@dataclass(slots=True)
class Told:
    """One session: what its learner has said, and what it was asked for."""

    slot: str
    learner: LearnerProcess
    welcomed: bool = False
    report: pb.Report = field(default_factory=pb.Report)
    stepped_at: float = 0.0
    called: dict[int, tuple[int, int]] = field(default_factory=dict)  # slice: base, due
    sending: dict[int, int] = field(default_factory=dict)  # slice: base
    lanes: int = 1

    def owes(self, fragment: int, base: int) -> bool:
        """Whether an offer on this base was called for and may still come."""
        asked = self.called.get(fragment, (-1, 0))[0]
        return base in (asked, self.sending.get(fragment))

    def trains(self, now: float) -> bool:
        """Rule 6."""
        allowed = max(STALL_SECONDS_MIN, STALL_STEPS * self.report.step_seconds)
        moves = self.report.waiting or now - self.stepped_at <= allowed
        return self.welcomed and self.report.training and moves


@dataclass(slots=True)
class Facts:
    """One shard process."""

    tick: int = 0
    ticks: "deque[tuple[float, int]]" = field(default_factory=lambda: deque(maxlen=400))
    sessions: dict[int, Told] = field(default_factory=dict)
    complete: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    merging: dict[int, int] = field(default_factory=dict)  # slice: number of the head before it
    replaced: dict[tuple[str, int, float], float] = field(default_factory=dict)  # by a newer one
    looked_at: float = 0.0

    def current(self) -> dict[str, Told]:
        """The newest welcomed session of each slot."""
        return {told.slot: told for _, told in sorted(self.sessions.items()) if told.welcomed}


class RoundWatcher(Watcher):
    """See the module. Subclasses look in `look`, some times a second for each process."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sync = world.run_file.sync.with_fragments(world.layout.fragments)
        quorum = self.sync.quorum  # the word "all" is of modes without Calls, which are not watched
        self.quorum = quorum if isinstance(quorum, int) else len(world.run_file.slots)
        self.facts: dict[str, Facts] = defaultdict(Facts)

    # ------------------------------------------------------------ what happens

    def shard_joined(self, shard: ShardProcess, session: int, join: pb.Join) -> None:
        if not join.observer:
            learner = self.world.instances[join.instance]
            self.facts[shard.name].sessions[session] = Told(
                join.slot, learner, lanes=max(1, join.lanes)
            )

    def shard_message(self, shard: ShardProcess, session: int, message: pb.ToShard) -> None:
        told = self.facts[shard.name].sessions.get(session)
        if told is not None and message.HasField("report"):
            report = message.report
            was = told.report
            if report.t_m != was.t_m or not was.training or was.waiting:
                told.stepped_at = self.world.sim.now
            told.report = report

    def offer_accepted(self, shard: ShardProcess, session: int, transfer: pb.Transfer) -> None:
        told = self.facts[shard.name].sessions.get(session)
        if told is not None:
            told.called.pop(transfer.offer.slice, None)
            if told.lanes == 1:  # with more the next one comes while the last is examined
                told.sending.clear()
            told.sending[transfer.offer.slice] = transfer.offer.base

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        facts, now = self.facts[shard.name], self.world.sim.now
        for session in [each for each in facts.sessions if each not in shard.peers]:
            del facts.sessions[session]
        for effect in effects:
            self._note(shard, facts, effect)
        if now >= facts.looked_at + LOOK_SECONDS and self.counts(shard):
            facts.looked_at = now
            self.look(shard, facts, now)

    def _note(self, shard: ShardProcess, facts: Facts, effect: Effect) -> None:
        now = self.world.sim.now
        match effect:
            case Send(session, message) if session in facts.sessions:
                told, kind = facts.sessions[session], message.WhichOneof("kind")
                if kind == "welcome":
                    told.welcomed, told.stepped_at = True, now
                    self._ticks(facts, message.welcome.tick)
                elif kind == "tick":
                    self._ticks(facts, message.tick.tick)
                elif kind == "call":
                    told.called[message.call.slice] = message.call.base, message.call.due
                    self.called(shard, facts, told, message.call)
            case EndSession(session, _):
                facts.sessions.pop(session, None)
            case Stage(slot=slot, slice=fragment):
                facts.complete[fragment][slot] = facts.replaced.pop((slot, fragment, now), now)
                self._arrived(facts, slot, fragment)
            case TapeLine(record) if record["event"] == "late":
                self._arrived(facts, str(record["slot"]), int(str(record["slice"])))
            case Drop(slot=slot, slice=fragment):
                if (at := facts.complete[fragment].pop(slot, None)) is not None:
                    facts.replaced[slot, fragment, now] = at
            case MergeOffers(slice=fragment):
                self.merges(shard, facts, effect)
                assert shard.shard is not None
                facts.merging[fragment] = shard.shard.state.history.heads[fragment].number
                facts.complete[fragment].clear()

    def _arrived(self, facts: Facts, slot: str, fragment: int) -> None:
        for told in facts.sessions.values():
            if told.slot == slot:
                told.sending.pop(fragment, None)

    def _ticks(self, facts: Facts, tick: int) -> None:
        if tick > facts.tick:
            facts.tick = tick
            facts.ticks.append((self.world.sim.now, tick))

    # ------------------------------------------------------------ what subclasses look at

    def look(self, shard: ShardProcess, facts: Facts, now: float) -> None:
        """Some time has passed."""

    def called(self, shard: ShardProcess, facts: Facts, told: Told, call: pb.Call) -> None:
        """A Call is sent."""

    def merges(self, shard: ShardProcess, facts: Facts, merge: MergeOffers) -> None:
        """A round closes."""

    # ------------------------------------------------------------ questions

    def counts(self, shard: ShardProcess) -> bool:
        """Whether the process serves rounds that Calls drive, and the job is not at its end."""
        return self.serves(shard) and not self.is_over(shard)

    def serves(self, shard: ShardProcess) -> bool:
        """Whether the process has the shard and serves, in a mode with Calls."""
        if self.sync.lockstep or shard.shard is None:
            return False
        state = shard.shard.state
        newest = self.world.shards[shard.number] is shard
        return bool(newest and state.serving and not state.history.ended)

    def is_over(self, shard: ShardProcess) -> bool:
        """Rule 27: t >= T."""
        return shard.shard is not None and shard.shard.state.over

    def is_unread(self, shard: ShardProcess, fragment: int) -> bool:
        """Rule 45: such a slice is called for, and merged only when it is back."""
        assert shard.shard is not None
        return fragment in shard.shard.state.reading.unread

    def under_way(self, shard: ShardProcess, facts: Facts, fragment: int) -> bool:
        """Whether a commit of the slice is not durable yet."""
        assert shard.shard is not None
        before = facts.merging.get(fragment)
        if before is not None and shard.shard.state.history.heads[fragment].number > before:
            del facts.merging[fragment]
        return fragment in facts.merging

    def is_due(self, shard: ShardProcess, facts: Facts, fragment: int) -> bool:
        """Rule 9: a due tick has come since the one of the newest version."""
        assert shard.shard is not None
        last = shard.shard.state.history.due.get(fragment, 0)
        due = newest_due(self.sync, fragment, facts.tick)
        return due - last >= start_distance(self.sync)
