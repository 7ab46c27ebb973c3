"""What goes wrong with the stores of shards."""

from sim.drawn_claims import Fault
from sim.learner_process import LearnerProcess
from sim.shard_process import ShardProcess
from sim.world import World


def store_away(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """The store answers nothing for a while."""
    store = world.stores[shard.number]
    store.away = True
    world.sim.after(fault.seconds, lambda: setattr(store, "away", False))


def store_answers(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """Answers of the store get lost."""
    store = world.stores[shard.number]
    store.lost_answers = 0.5
    world.sim.after(fault.seconds, lambda: setattr(store, "lost_answers", 0.0))


def store_conflicts(
    world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess
) -> None:
    """Creates of the store meet others' requests: it says so, and stores nothing (S3's 409)."""
    store = world.stores[shard.number]
    store.conflicts = 0.5
    world.sim.after(fault.seconds, lambda: setattr(store, "conflicts", 0.0))


def store_forbids(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """The permission to write is gone for a while."""
    store = world.stores[shard.number]
    store.is_forbidden = True
    world.sim.after(fault.seconds, lambda: setattr(store, "is_forbidden", False))


def lose_store(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A shard dies with its store (Ephemeral)."""
    if world.closed or any(each.training.finished for each in world.all_learners):
        return  # who has left the job would be missed
    number = shard.number
    for process in world.all_shards:
        if process.number == number:
            process.kill("its store is gone")
    world.stores[number] = world.new_store(number)
    world.watchers.tell("store_lost", number)
    world.shards[number] = world.start_shard(number, after=1.0)
    world.others[number] = None


def lose_object(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A shard dies, and the newest object of one slice is gone."""
    state = None if shard.shard is None else shard.shard.state
    if world.closed or not shard.alive or state is None or not state.history.heads:
        return
    shard.kill("an object is gone")
    heads = [head.object for _, head in sorted(state.history.heads.items())]
    name = heads[fault.which % len(heads)]
    world.stores[shard.number].data.pop(name, None)
    world.watchers.tell("object_lost", shard.number, name)
    world.shards[shard.number] = world.start_shard(shard.number, shard.pod, after=1.0)


FAULTS = {
    "store away": store_away,
    "store answers": store_answers,
    "store conflicts": store_conflicts,
    "store forbids": store_forbids,
    "lose store": lose_store,
    "lose object": lose_object,
}
