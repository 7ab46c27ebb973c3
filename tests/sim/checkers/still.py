"""Rule 40: whose training process says nothing, though it has something to say, is Stalled."""

from collections import defaultdict
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model.effects import Effect
from atoll_worker.link.messages import Adopt, Boundary, Capture, Finished, Proceed, Start
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.symbols import Key
from sim.watch import Watcher
from sim.world import World

STALLED_SECONDS_MAX = 10.0
REPORTS_SECONDS, STEPS = 4.0, 3.0  # where three mean steps are longer
SLACK_SECONDS = 0.8  # the rules look four times a second, and links have delays

STEP = "step"


class StillChecker(Watcher):
    """Looks at what passes over the link of both processes, whatever a report says of it."""

    rule = "40"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.owes: dict[str, set[Key | str]] = defaultdict(set)  # instance: what it has to say
        self.since: dict[str, float] = {}  # when it began to owe, or said something
        self.finished = set[str]()  # instances (rule 27)
        self.well: dict[tuple[str, str], float] = {}  # shard process, instance: reaches it since

    def training_told(self, learner: LearnerProcess, command: Any) -> None:
        """In lock-step it waits in step() until it is told something; finished, it owes no step."""
        if learner.instance in self.finished:
            return
        owes, before = self.owes[learner.instance], self.since.get(learner.instance)
        if before is None or not owes:
            self.since[learner.instance] = self.world.sim.now
        match command:
            case Adopt(shard=shard, fragment=fragment):
                owes.add((shard, fragment))
            case Capture(slices=slices):
                owes.update(slices)
            case Start() | Proceed():
                owes.add(STEP)
            case Finished():
                owes.clear()
                self.finished.add(learner.instance)

    def training_said(self, learner: LearnerProcess, message: Any) -> None:
        """A Boundary answers what it names; without lock-step the next step is owed at once."""
        owes = self.owes[learner.instance]
        self.since[learner.instance] = self.world.sim.now
        if isinstance(message, Boundary):
            owes -= {(shard, fragment) for shard, fragment, _ in message.adopted}
            owes -= set(message.captured)
            if not message.again and self.world.run_file.sync.lockstep:
                owes.discard(STEP)

    def learner_ended(self, learner: LearnerProcess) -> None:
        self.owes.pop(learner.instance, None)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        state = None if shard.shard is None else shard.shard.state
        if state is None or not state.serving:
            return
        now = self.world.sim.now
        for slot in state.sessions.slots.values():
            session = state.sessions.open.get(slot.session or -1)
            if session is None:
                continue
            instance = session.join.instance
            learner, key = self.world.instances[instance], (shard.name, instance)
            if slot.state(now) != pb.SLOT_TRAINING or not self._reaches(shard, learner):
                self.well.pop(key, None)
                continue
            well = self.well.setdefault(key, now)
            if not self.owes[instance]:
                continue
            since = max(self.since[instance], well, shard.woke_at, learner.woke_at)
            long = REPORTS_SECONDS + STEPS * slot.report.step_seconds
            bound = max(STALLED_SECONDS_MAX, long) + SLACK_SECONDS
            what = f"{instance} is Training at {shard.name}, and still since {since:.2f}"
            self.require(now - since <= bound, what)

    def _reaches(self, shard: ShardProcess, learner: LearnerProcess) -> bool:
        """Whether what its transport says comes at once."""
        blocked, now = self.world.weather.blocked_until, self.world.sim.now
        if any(blocked.get(name, 0.0) > now for name in (learner.slot, f"shard{shard.number}")):
            return False
        works = learner.alive and not learner.paused
        return works and not self.world.is_broken(learner, shard)
