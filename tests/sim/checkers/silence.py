"""Rule 44: a learner that runs leaves a shard that says nothing."""

from collections import defaultdict
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.link.messages import Fail
from sim.learner_process import LearnerProcess
from sim.watch import Watcher
from sim.world import World

SILENT_SECONDS = (3.0, 24.0)  # in the first session of a term, and the most
SLACK_SECONDS = 1.5  # until a step looks


class SilenceChecker(Watcher):
    """Looks at every step of a learner since when each shard of its sessions is silent."""

    rule = "44"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.heard: dict[tuple[str, int], float] = {}  # in sessions: instance, shard
        self.sessions: dict[tuple[str, int, int], int] = defaultdict(int)  # and epoch
        self.epochs: dict[tuple[str, int], int] = {}
        self.refused: set[str] = set()  # instances

    def recorded(self, learner: LearnerProcess, fields: dict[str, Any]) -> None:
        """Its session with a shard has ended."""
        if fields.get("event") == "disconnected":
            self.heard.pop((learner.instance, fields["shard"]), None)

    def training_told(self, learner: LearnerProcess, command: Any) -> None:
        """It dials no more, and ends as soon as its training process moves (rules 2 to 5)."""
        if isinstance(command, Fail):
            self.refused.add(learner.instance)

    def learner_message(self, learner: LearnerProcess, shard: int, message: pb.ToLearner) -> None:
        key = learner.instance, shard
        if message.HasField("welcome"):
            self.epochs[key] = message.welcome.epoch
            self.sessions[*key, message.welcome.epoch] += 1
            self.heard[key] = self.world.sim.now
        elif key in self.heard:
            self.heard[key] = self.world.sim.now

    def learner_bytes(self, learner: LearnerProcess, shard: int) -> None:
        if (learner.instance, shard) in self.heard:
            self.heard[learner.instance, shard] = self.world.sim.now

    def stepped(self, learner: LearnerProcess) -> None:
        if not learner.is_whole or learner.instance in self.refused:
            return
        least, most = SILENT_SECONDS
        for shard in range(self.world.run_file.shards):
            key = learner.instance, shard
            if key not in self.heard:
                continue
            sessions = self.sessions[*key, self.epochs[key]]
            bound = min(most, least * 2 ** (sessions - 1)) + SLACK_SECONDS
            silent = self.world.sim.now - max(self.heard[key], learner.woke_at)
            what = f"{learner.instance} stays with shard {shard}, silent for {silent:.1f} s"
            self.require(silent <= bound, what)
