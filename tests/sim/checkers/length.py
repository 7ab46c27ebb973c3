"""Rule 27: of all lengths that a process has heard of, the one of the highest revision counts."""

from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.schedule import Length, heard
from atoll_syncer.model.effects import Append, Ask, Effect, Send, SendReply
from atoll_syncer.model.log import Ended
from atoll_worker.link.messages import JobLength
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.watch import Watcher
from sim.world import World


class NewestLengthChecker(Watcher):
    """Shards tell and keep to the newest length, until their end is decided; learners follow it."""

    rule = "27 (length)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.newest: dict[str, int] = {}  # by instance: the highest revision that it has heard of
        self.ended: set[str] = set()
        self.told: dict[str, tuple[int | None, int]] = {}  # training processes, by instance

    def length_heard(self, shard: ShardProcess, length: Length) -> None:
        self._hears(shard.instance, length)

    def shard_did(self, shard: ShardProcess, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(_, message) if message.HasField("welcome"):
                    self._says(shard, message.welcome.length)
                case Send(_, message) if message.tick.HasField("length"):
                    self._says(shard, message.tick.length)
                case Ask(pb.HelloRequest() as hello) | SendReply(_, pb.HelloReply() as hello):
                    self._says(shard, hello.length)
                case Append(Ended(tick=tick)):
                    self._ends(shard, tick)

    def learner_message(self, learner: LearnerProcess, shard: int, message: pb.ToLearner) -> None:
        session = learner.exchange.state.shards[shard]
        if message.HasField("welcome") or (message.HasField("tick") and session.welcomed):
            length = message.welcome.length if message.HasField("welcome") else message.tick.length
            self._hears(learner.instance, heard(length))

    def training_told(self, learner: LearnerProcess, command: Any) -> None:
        if isinstance(command, JobLength):
            self.told[learner.instance] = command.steps, command.tokens or 0

    def run_ended(self) -> None:
        for learner in self.world.learners.values():
            known = self._known(learner.instance)
            told = self.told.get(learner.instance, self._of_run_file())
            self.require(told == known, f"{learner.name} was told {told}, the newest is {known}")

    def _hears(self, instance: str, length: Length) -> None:
        self.newest[instance] = max(self.newest.get(instance, 0), length.revision)

    def _known(self, instance: str) -> tuple[int | None, int]:
        revision = self.newest.get(instance, 0)
        if not revision:
            return self._of_run_file()
        length = self.world.scenario.length(revision)
        return length.steps, length.tokens

    def _of_run_file(self) -> tuple[int | None, int]:
        return self.world.run_file.steps, self.world.run_file.tokens or 0

    def _says(self, shard: ShardProcess, message: pb.Length) -> None:
        assert shard.shard is not None
        if shard.instance not in self.ended and not shard.shard.state.history.ended:
            said = heard(message)
            known = self.newest.get(shard.instance, 0), *self._known(shard.instance)
            fits = (said.revision, said.steps, said.tokens) == known
            self.require(fits, f"{shard.name} says {said}, the newest that it knows is {known}")

    def _ends(self, shard: ShardProcess, tick: int) -> None:
        self.ended.add(shard.instance)
        steps, _ = self._known(shard.instance)
        self.require(tick >= (steps or 0), f"{shard.name} ends at tick {tick} of {steps}")
