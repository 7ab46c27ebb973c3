"""The end: every finished learner has the exported values, in all bits."""

from collections.abc import Mapping
from typing import Any

from atoll_protos.transfer.codecs import base_encoding
from atoll_worker.link.messages import Finished
from sim.learner_process import LearnerProcess
from sim.symbols import Key, Value
from sim.watch import Watcher
from sim.world import World


class FinalChecker(Watcher):
    """Rules 17 and 27: one final value of each slice, and nothing of it is rounded by the wire.

    What a shard exports is what it has exported before, and what learners are finished with. Where
    committed data was lost, learners that left before had another one.
    """

    rule = "27 (values)"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.finals: dict[Key, Value] = {}
        self.lost: set[int] = set()

    def store_lost(self, shard: int) -> None:
        self.lost.add(shard)

    def object_lost(self, shard: int, name: str) -> None:
        self.lost.add(shard)

    def exported(self, shard: int, values: Mapping[int, Value]) -> None:
        self.require(len(values) == self.world.layout.fragments, f"shard {shard}: {values}")
        for fragment, value in values.items():
            self._final((shard, fragment), value, f"shard {shard} exports")

    def commanded(self, learner: LearnerProcess, command: Any) -> None:
        if not isinstance(command, Finished):
            return
        if not learner.observer:
            again = sorted(command.again)
            self.require(again == sorted(learner.regions), f"{learner.name} takes only {again}")
        for key, (_, value) in learner.placed.items():
            self._final(key, value, f"{learner.name} is finished with")

    def _final(self, key: Key, value: Value, who: str) -> None:
        if key[0] in self.lost:
            return
        base = base_encoding(self.world.run_file.sync.wire_down)
        rounded = self.world.layout.final_encoding(self.world.layout.slice(*key), base) != base
        self.require(value.exact == rounded, f"{who} {key} as the wire rounds it")
        known = self.finals.setdefault(key, value)
        self.require(known.digest == value.digest, f"{who} {key} {value}, not {known}")
