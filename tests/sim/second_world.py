"""A run of another form that begins with a checkpoint of the first world's (rule 43).

It has other shards, fragments and learners, where the model has enough tensors for them.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll_protos.errors import SpecError
from atoll_protos.job.layout import Layout
from atoll_protos.job.run_file import NOBODY
from atoll_syncer.checkpoints import copies
from atoll_syncer.model.history import History
from atoll_syncer.model.log import Trained
from sim.drawn_claims import FAULTS_END, Fault, faults_of, quorum_of, regions_of
from sim.memory_place import MemoryPlace

if TYPE_CHECKING:
    from sim.scenario import Scenario
    from sim.world import World

SHARDS, FRAGMENTS, LEARNERS = (1, 2, 3), (1, 2, 3, 4), (1, 2, 3)
KINDS = "kill shard", "kill learner", "pause shard", "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The newest whole checkpoint that a world has left, and what it has to say."""

    place: MemoryPlace
    step: int
    layout: Layout
    histories: Sequence[History]  # by shard
    furthest: Mapping[str, int]  # by slot: the largest cursor that was merged; none after a loss

    @property
    def run(self) -> str:
        return self.histories[0].run

    @property
    def trained(self) -> int:
        """Tokens, of all slots."""
        found: dict[str, Trained] = {}
        for history in self.histories:
            for slot, each in history.trained.items():
                found[slot] = found.get(slot, each).also(each)
        return sum(each.total for each in found.values())

    @property
    def tick(self) -> int:
        return min(each.tick for each in self.histories)


def left_by(world: "World") -> Parent | None:
    """None: no checkpoint has become whole."""
    place = world.place
    whole = [step for step in copies.steps_of(place) if copies.read_whole(place, step) is not None]
    if not whole:
        return None
    step, furthest, histories = whole[-1], Counter[str](), []
    for shard in range(world.run_file.shards):
        found = copies.read_part(place, step, shard)
        assert found is not None, "a part without its history"
        histories.append(found.history)
        for position, slot, cursor in world.merged[shard]:
            if position <= found.position:
                furthest |= Counter({slot: cursor})
    if world.loses_a_store:
        furthest.clear()
    return Parent(
        place=place, step=step, layout=world.layout, histories=histories, furthest=furthest
    )


def draw(first: "Scenario", parent: Parent) -> "Scenario":
    """Two periods more than the checkpoint has; half of them meet faults."""
    seed, run_file = first.seed, first.run_file
    rng = random.Random(f"{seed}/second world")
    learners, tensors = rng.choice(LEARNERS), parent.layout.tensors
    sync = replace(
        run_file.sync, quorum=quorum_of(rng.randint(1, learners), learners, seed), fragments=1
    )
    steps = parent.tick + 2 * sync.period
    run_file = replace(
        run_file,
        regions=regions_of(learners, seed),
        steps=steps,
        tokens=None,
        sync=sync,
        checkpoint=None,
        restore_from=f"{parent.place.url}/{copies.step_name(parent.step)}",
    )
    forms = []
    for shards in SHARDS:
        for fragments in FRAGMENTS[: sync.period // 2]:
            each = replace(run_file, shards=shards, sync=replace(sync, fragments=fragments))
            try:
                forms.append((each, each.layout(tensors)))
            except SpecError:
                continue  # more slices than tensors
    others = [each for each in forms if each[1].digest != parent.layout.digest]
    run_file, layout = rng.choice(others or forms)
    return replace(
        first,
        run_file=run_file,
        layout=layout,
        step_seconds={slot: rng.uniform(0.3, 1.0) for slot in run_file.slots},
        faults=draw_faults(rng),
        observer=False,
        slow=frozenset(),
        lists=(),
        expected=NOBODY,
        certificate_seconds=0.0,
        ranks={},
        lengths=(),
        reads={},
    )


def draw_faults(rng: random.Random) -> tuple[Fault, ...]:
    if rng.random() < 0.5:
        return ()
    kinds = [rng.choice(KINDS) for _ in range(2)]
    return faults_of(rng, kinds, lambda kind: rng.uniform(0.5, 8.0), end=FAULTS_END / 4)
