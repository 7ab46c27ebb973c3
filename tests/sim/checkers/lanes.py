"""Rule 34, and what the checkers of rules 32 to 34 know: sessions of several lanes, and the frames.

A frame is looked at when it is sent and when it comes, before production code sees it.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.frames import Kind, decode_frame
from sim.channel import Lane
from sim.learner_process import LearnerProcess
from sim.rpc import LINGER_SECONDS
from sim.shard_process import ShardProcess
from sim.symbols import Key, Value
from sim.watch import Watcher
from sim.world import World

NOTICED_SECONDS = 1.0 + LINGER_SECONDS  # in which a shard that can move does what it must

Session = tuple[str, int]  # shard process, number


class SessionsWatcher(Watcher):
    """How many lanes each session has that has several."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.lanes: dict[Session, int] = {}
        self.instances: dict[Session, str] = {}  # of the learners that have them

    def shard_joined(self, shard: ShardProcess, session: int, join: pb.Join) -> None:
        if join.lanes > 1:
            self.lanes[shard.name, session] = join.lanes
            self.instances[shard.name, session] = join.instance

    def is_its_own(self, lane: Lane) -> bool:
        """Whether this process gave the session to this learner; else it refuses its streams."""
        return self.instances.get((lane.shard.name, lane.session)) == lane.learner.instance


class WholeSessionChecker(SessionsWatcher):
    """Rule 34: a session ends with any of its lanes."""

    rule = "34 (lanes)"

    def lane_ended(self, lane: Lane) -> None:
        if self.is_its_own(lane):
            self._look_later(lane, self.world.sim.now)

    def _look_later(self, lane: Lane, since: float) -> None:
        self.world.sim.at(since + NOTICED_SECONDS, partial(self._look, lane, since))

    def _look(self, lane: Lane, since: float) -> None:
        """A process that stands still, or stood, looks at its clock a little later."""
        shard = lane.shard
        goes_on = lane.session in shard.peers and not shard.peers[lane.session].ended
        if not (shard.alive and goes_on):
            return
        if shard.paused or shard.woke_at > since:
            self._look_later(lane, self.world.sim.now if shard.paused else shard.woke_at)
        else:
            lost = f"session {lane.session} of {shard.name} has lost lane {lane.number}"
            self.require(False, f"{lost}, and goes on")


@dataclass(frozen=True, slots=True)
class Version:
    """Of one slice, as a head names it."""

    key: Key
    number: int
    digest: str


class WholeVersionChecker(SessionsWatcher):
    """Rule 34: what a learner adopts, or says that it holds, is there in all parts."""

    rule = "34 (parts)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.heads: dict[tuple[Session, int], tuple[int, Version]] = {}  # by lane: the newest part
        self.parts: dict[tuple[Session, int], dict[int, Version]] = defaultdict(dict)
        self.whole: dict[str, set[Version]] = defaultdict(set)  # by learner

    def frame_arrived(self, lane: Lane, frame: bytes) -> None:
        session, said = (lane.shard.name, lane.session), decode_frame(frame)
        if said.kind is Kind.HEAD:
            publish = pb.Transfer.FromString(bytes(said.payload)).publish
            version, key = publish.version.version, (lane.shard.number, publish.version.slice)
            named = Version(key, version.number, version.digest)
            self.heads[session, lane.number] = said.transfer, named
        elif said.kind is Kind.TRAILER:
            number, named = self.heads[session, lane.number]
            parts = self.parts[session, number]
            parts[lane.number] = named
            if len(parts) == self.lanes[session] and set(parts.values()) == {named}:
                self.whole[lane.learner.name].add(named)

    def adopted(self, learner: LearnerProcess, key: Key, publish: pb.Publish, value: Value) -> None:
        if learner.lanes > 1:
            version = publish.version.version
            self._has(learner, Version(key, version.number, version.digest), "adopts")

    def learner_joins(self, learner: LearnerProcess, shard: int, join: pb.Join) -> None:
        if learner.lanes > 1:
            for each in join.held:
                version = Version((shard, each.slice), each.version.number, each.version.digest)
                self._has(learner, version, "says that it holds")

    def _has(self, learner: LearnerProcess, version: Version, does: str) -> None:
        whole = version in self.whole[learner.name]
        self.require(whole, f"{learner.name} {does} {version}, of which a part is missing")
