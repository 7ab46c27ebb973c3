"""What goes wrong, when its time comes."""

from collections.abc import Callable
from functools import partial

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import REGISTRAR_SHARD
from atoll_syncer.storage.files import LOG
from sim import damage as damage_of_all
from sim import store_faults
from sim.clock import Action
from sim.drawn_claims import FAULTS_END, Fault
from sim.learner_process import LearnerProcess
from sim.rank_processes import FollowerProcess, HeadProcess
from sim.shard_process import ShardProcess
from sim.world import World

FAR = 10_000  # steps that nobody makes
DAMAGED_SHARE = 0.3  # of the chunks of values, while some arrive damaged


def schedule(world: World) -> None:
    """Put the scenario's faults on the clock."""
    for fault in world.scenario.faults:
        happen = partial(apply, world, fault)
        if fault.effect:
            happen = partial(wait_for, world, fault, happen)
        world.sim.at(fault.at, happen)


def wait_for(world: World, fault: Fault, happen: Action) -> None:
    """A fault that comes with the next effect of its kind."""
    world.at_effects.setdefault(fault.effect, []).append(happen)


def apply(world: World, fault: Fault) -> None:
    if world.sim.now >= FAULTS_END:
        return  # what an effect of the last moment brought
    with_it = f" at {fault.effect}" if fault.effect else ""
    world.sim.note("FAULT", f"{fault.kind} {fault.seconds:.1f} s{with_it}")
    slots = world.run_file.slots
    learner = world.learners[slots[fault.which % len(slots)]]
    shard = world.shards[fault.which % world.run_file.shards]
    FAULTS[fault.kind](world, fault, learner, shard)


def drop(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    living = [each for each in world.connections if each.stands]
    if living:
        living[fault.which % len(living)].drop()


def cut(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """All connections between a learner and a shard break."""
    for each in world.connections:
        if each.stands and (each.ends[0].process, each.ends[1].process) == (learner, shard):
            each.drop()


def kill_learner(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """Killed with -9, and started again: in its pod, or as another pod."""
    if learner.alive and not learner.training.finished:
        learner.kill("killed")
        uid = learner.uid if fault.which % 3 else f"{learner.slot}-pod{world.starts}"
        world.learners[learner.slot] = world.start_learner(learner.slot, uid, fault.seconds / 4)


def kill_shard(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """Killed with -9: memory is gone, the store is not. Some die just after a commit's entry."""
    number = shard.number

    def kill() -> None:
        process = world.shards[number]
        if process.alive:
            process.kill("killed")
            again = world.start_shard(number, process.pod, after=fault.seconds / 4)
            world.shards[number] = again

    if fault.which % 8 == 3:
        after_a_commit(world, number, kill)
    else:
        kill()


def after_a_commit(world: World, number: int, happen: Callable[[], None]) -> None:
    """Once the shard's next commit is durable, before its process knows that (rule 29).

    That takes milliseconds, which a moment drawn at random hardly ever meets.
    """
    waits = True

    def created(name: str, data: bytes) -> None:
        nonlocal waits
        if waits and name.startswith(LOG) and b'"Committed"' in data:
            waits = False
            if world.sim.now < FAULTS_END:
                world.sim.after(0.0, happen)

    world.stores[number].on_create.append(created)


def pause_learner(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """It stands still, then handles everything at once."""
    world.pause(learner, fault.seconds)


def pause_shard(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """It stands still, then handles everything at once."""
    world.pause(shard, fault.seconds)


def stop_shard(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """It is told to end, as in a rollout: it says goodbye, and is started again."""
    shard.do(shard.stopping.set)


def replace_shard(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """Another pod takes the shard's place while the former one lives, and goes a while later.

    The former one stands still, or no learner reaches it, or it works, perhaps on a slow store.
    """
    number, pod = shard.number, shard.pod
    if not shard.alive or world.others[number] is not None:
        return
    world.others[number], world.shards[number] = shard, world.start_shard(number)
    if fault.which % 3 == 0:
        world.pause(shard, fault.seconds)
    elif fault.which % 3 == 1:
        shard.cut_until = world.sim.now + fault.seconds
        for connection in world.connections:
            if connection.ends[1].process is shard:
                connection.drop()
    in_order = fault.which // 3 % 2 == 0
    world.sim.after(fault.seconds, partial(world.retire, number, pod, in_order=in_order))


def partition(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A machine cannot be reached; long ones cost its connections."""
    machine = learner.slot if fault.which % 3 else f"shard{shard.number}"
    world.weather.blocked_until[machine] = world.sim.now + fault.seconds
    for connection in world.connections:
        if machine in (end.machine for end in connection.ends) and fault.seconds > 10:
            world.sim.after(world.rng.uniform(5.0, 10.0), connection.drop)


def successor(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """The shard stands still while another pod takes it over on the same store."""
    if shard.alive and shard.shard is not None:
        world.pause(shard, fault.seconds + 6.0)
        world.shards[shard.number] = world.start_shard(shard.number)


def zombie(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """Connections break, the learner does not know, and another process takes the slot."""
    if not learner.alive or learner.training.finished:
        return
    if fault.which % 2:
        learner.pause(fault.seconds)
    for connection in world.connections:
        if connection.ends[0].process is learner and fault.which % 4 < 2:
            connection.drop()
    uid = learner.uid if fault.which % 8 < 4 else f"{learner.slot}-pod{world.starts}"
    world.learners[learner.slot] = world.start_learner(learner.slot, uid, 0.1)


def owner(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """The operator gives a slot to a new pod while the old one may still run."""
    if learner.alive and not learner.training.finished:
        uid = f"{learner.slot}-pod{world.starts}"
        world.learners[learner.slot] = world.start_learner(learner.slot, uid, 0.1)
        world.set_owner(learner.slot, uid)


def late_word(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A SetOwner for the present pod is on its way while the operator names a newer one."""
    if not learner.alive or learner.training.finished:
        return
    registrar = world.shards[REGISTRAR_SHARD].shard
    owned = registrar.state.history.owned.get(learner.slot) if registrar is not None else None
    shown, before = owned.generation if owned else 0, learner.uid
    owner(world, fault, learner, shard)
    late = partial(world.set_owner, learner.slot, before, shown)
    world.sim.after(fault.seconds * world.rng.uniform(0.0, 1.0), late)


def old_run(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A learner of a former run of this job has survived it, and dials again.

    A registrar that may have lost its store would carry on with what it says (rule 2).
    """
    if not world.scenario.fresh or world.loses_a_store:
        return
    guest = world.start_guest(learner.slot, f"{learner.slot}-old", observer=False)
    guest.remember("run-old", tick=5000, incarnation=1 + fault.which % 7)


def old_observer(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """An evaluator of a former run of this job has survived it, and dials again."""
    if not world.scenario.fresh or world.loses_a_store:
        return
    guest = world.start_guest("", "old-evaluator", observer=True)
    guest.remember("run-old" if fault.which % 2 else "", tick=5000, incarnation=0)


def hiccup(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """One step takes very long, or all that follow take longer."""
    if fault.which % 2:
        learner.hiccup_seconds = fault.seconds
    else:
        learner.slowness *= 1.0 + fault.seconds / 10.0


def damage(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    world.weather.damaged_share = DAMAGED_SHARE
    world.sim.after(fault.seconds, lambda: setattr(world.weather, "damaged_share", 0.0))


def silent_lane(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """One of several lanes stands, and nothing comes on it, one way or both; the others go on."""
    living = [each for each in world.connections if each.is_lane and each.stands]
    if living:
        for side in ((0,), (1,), (0, 1))[fault.which % 3]:
            silent = living[fault.which // 3 % len(living)].silent_until
            silent[side] = world.sim.now + fault.seconds


def kill_rank(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A rank that is not the head is killed with -9; its head ends, and all start again."""
    if (rank := some_rank(world, fault)) is not None:
        rank.kill("killed")


def freeze_rank(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A rank that is not the head stands still, with all that its head does with it."""
    if (rank := some_rank(world, fault)) is not None:
        rank.pause(fault.seconds)


def still_training(
    world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess
) -> None:
    """A training process stands still, now or inside of step(), and its transport lives."""
    alone = [each for each in world.learners.values() if not isinstance(each, HeadProcess)]
    if not alone:
        return  # ranks stand still by themselves
    learner = alone[fault.which % len(alone)]
    if fault.which % 3 and world.run_file.sync.lockstep:
        learner.still_seconds = fault.seconds
    else:
        learner.stand_still(fault.seconds)


def lie(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A learner says once what cannot be true: in its next report, or when it joins anew."""
    learner.lie = LIES[fault.which // 8 % len(LIES)]
    if learner.lie.HasField("join"):
        cut(world, fault, learner, shard)


def claim(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A learner says that it is far ahead: for a while of its steps, or once of what it has seen.

    After that it joins anew, since a shard counts no step below what was said. In lock-step a
    learner that waits at the end may be the only one there: it claims a step less.
    """
    if shard.shard is None or not shard.shard.state.clock.commits:
        return  # it may have lost ticks, and most learners know better
    far = world.scenario.steps - 1 if world.run_file.sync.lockstep else FAR
    if fault.which % 4 < 2:
        learner.lie = pb.ToShard(join=pb.Join(tick_seen=FAR))
        cut(world, fault, learner, shard)
    else:
        learner.lie = pb.ToShard(report=pb.Report(t_m=far))
        learner.lies_until = world.sim.now + fault.seconds

        def again() -> None:
            learner.lie = None
            for each in world.shards:
                cut(world, fault, learner, each)

        world.sim.after(fault.seconds, again)


def false_version(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A learner says in a report that it holds a version which never was; then it joins anew."""
    claimed = pb.SliceProgress(held=FAR + fault.which, digest=f"{fault.which:016x}")
    learner.lie = pb.ToShard(report=pb.Report(slices=[claimed]))
    world.sim.after(fault.seconds, lambda: cut(world, fault, learner, shard))


def false_name(world: World, fault: Fault, learner: LearnerProcess, shard: ShardProcess) -> None:
    """A learner names a higher incarnation for another slot of its region, at another shard."""
    slots = [slot for slot in world.run_file.slots if slot != learner.slot]
    other = slots[fault.which // 4 % len(slots)]
    number = world.learners[other].incarnation + 1 + fault.which % 3
    learner.lie = pb.ToShard(join=pb.Join(slot=other, incarnation=number))
    cut(world, fault, learner, world.shards[-1])


BIG = 2**64 - 1
LIES = (
    *(
        pb.ToShard(report=pb.Report(**{field: BIG}))  # type: ignore[arg-type]
        for field in ("tokens", "t_m", "cursor", "tick_seen")
    ),
    pb.ToShard(report=pb.Report(slices=[pb.SliceProgress(slice=1000, held=1)])),
    pb.ToShard(report=pb.Report(slices=[pb.SliceProgress(held=BIG, digest="0" * 16)])),
    pb.ToShard(join=pb.Join(epochs_seen=[BIG])),
    pb.ToShard(join=pb.Join(incarnation=BIG)),
    pb.ToShard(join=pb.Join(tick_seen=BIG)),
    pb.ToShard(join=pb.Join(held=[pb.SliceVersion(version=pb.Version(number=BIG))])),
)


def some_rank(world: World, fault: Fault) -> FollowerProcess | None:
    """One of a learner that trains."""
    living = [
        each
        for each in world.followers
        if each.alive and world.learners[each.head.slot] is each.head
        if each.head.alive and not each.head.training.finished
    ]
    return living[fault.which % len(living)] if living else None


FAULTS: dict[str, Callable[[World, Fault, LearnerProcess, ShardProcess], None]] = {
    **store_faults.FAULTS,
    "drop": drop,
    "cut": cut,
    "kill learner": kill_learner,
    "kill shard": kill_shard,
    "pause learner": pause_learner,
    "pause shard": pause_shard,
    "partition": partition,
    "stop shard": stop_shard,
    "replace shard": replace_shard,
    "successor": successor,
    "zombie": zombie,
    "owner": owner,
    "late word": late_word,
    "old run": old_run,
    "old observer": old_observer,
    "hiccup": hiccup,
    "damage": damage,
    "kill rank": kill_rank,
    "freeze rank": freeze_rank,
    "still training": still_training,
    "silent lane": silent_lane,
    damage_of_all.KIND: damage_of_all.everywhere,
    "lie": lie,
    "false name": false_name,
    "false version": false_version,
    "claim": claim,
    "list": lambda *_: None,  # each shard reads the changed list in its time (rule 41)
}


def stop(world: World) -> None:
    """From now on everything works: a paused process wakes, the network is whole."""
    world.sim.note("FAULT", "no more")
    world.at_effects.clear()
    world.weather.blocked_until.clear()
    world.weather.damaged_share = 0.0
    for connection in world.connections:
        connection.silent_until = [0.0, 0.0]
    for store in world.stores:
        store.away, store.lost_answers = False, 0.0
        store.is_forbidden, store.conflicts = False, 0.0
    for other in world.others:
        if other is not None:
            world.retire(other.number, other.pod, in_order=False)
    for shard in world.all_shards:
        shard.cut_until = 0.0
    for process in (*world.all_shards, *world.all_learners, *world.followers, *world.guests):
        process.wake()
    for learner in world.all_learners:
        learner.still_seconds = 0.0
        if learner.stands_still:
            learner.do(learner.move_again)
