"""The newest object of a slice is damaged when no learner holds its version (rule 22)."""

import random
from typing import TYPE_CHECKING

from sim.drawn_claims import FAULTS_BEGIN, FAULTS_END, Fault

if TYPE_CHECKING:
    from sim.learner_process import LearnerProcess
    from sim.shard_process import ShardProcess
    from sim.world import World

SEEDS = 16, 14  # modulus and rest
KIND = "damage everywhere"


def draw(seed: int) -> tuple[Fault, ...]:
    modulus, rest = SEEDS
    if seed % modulus != rest:
        return ()
    rng = random.Random(f"{seed}/damage everywhere")
    at = rng.uniform(FAULTS_BEGIN, FAULTS_END)
    return (Fault(at=at, kind=KIND, which=rng.randrange(1 << 16), seconds=1.0),)


def everywhere(
    world: "World", fault: Fault, learner: "LearnerProcess", shard: "ShardProcess"
) -> None:
    """A shard dies with its newest object of a slice, and all learners of its run with it."""
    state = None if shard.shard is None else shard.shard.state
    over = world.closed or any(each.training.finished for each in world.all_learners)
    if over or not shard.alive or state is None or state.recovery is not None:
        return
    heads = {n: each for n, each in sorted(state.history.heads.items()) if each.number}
    if not heads:
        return  # before version 0 there is none
    shard.kill("its newest object of a slice is damaged")
    for each in world.all_learners:
        each.kill("all are gone")
    name = [*heads.values()][fault.which % len(heads)].object
    world.stores[shard.number].data.pop(name, None)
    world.watchers.tell("object_lost", shard.number, name)
    world.shards[shard.number] = world.start_shard(shard.number, shard.pod, after=1.0)
    for slot in world.learners:
        world.learners[slot] = world.start_learner(slot, f"{slot}-pod{world.starts}", 0.5)
