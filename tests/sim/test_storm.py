"""A storm of faults over hours of virtual time: the job keeps its pace, and ends."""

import json
import random
from dataclasses import replace
from statistics import mean

import pytest

from atoll_protos.job.run_file import Region, RunFile
from atoll_syncer.storage.files import LOG
from sim import faults, simulate
from sim.checkers.every import ALL
from sim.drawn_claims import Fault
from sim.scenario import Scenario, draw
from sim.simulate import constant, logs_into, quiet_seconds_max
from sim.world import World

QUIET = 0  # a seed without faults
FAULTS_AN_HOUR = 125
KINDS = ("kill learner", "kill learner", "kill shard", "drop")  # of machines, and connections
# The storm of issue 21 is that of a small GPT, whose steps take from tenths of a second to a few.
# Each learner is killed every 173 s, and a kill costs its start (2 s), half of a step and the first
# one of the new process, whatever the rules are: 2% of its time with steps of 1 s, 5.5% with 5 s.
STEP_SECONDS = 1.0
LEARNERS, SHARDS = 3, 2
THROUGHPUT_MIN, PARTICIPATION_MIN = 0.97, 0.95
THROUGHPUT_MAX = 1.01  # else learners that join again drive the clock (rule 8)
QUIET_SHARE = 0.1  # of the storm's time, in which the pace without faults is measured


def scenario(seed: int, hours: float, *, storm: bool) -> Scenario:
    """Two shards and three learners of a small model."""
    rng = random.Random(f"{seed}/storm")
    drawn = draw(QUIET)
    seconds = 3600 * hours
    steps = int(0.9 * seconds / STEP_SECONDS)
    sync = replace(drawn.run_file.sync, fragments=4, period=24, overlap=2, quorum=1, lockstep=False)
    job: RunFile = replace(
        drawn.run_file,
        regions=(Region(name="a", learners=LEARNERS),),
        shards=SHARDS,
        seed=seed,
        steps=steps,
        sync=sync,
        checkpoint=None,
    )
    table = [replace(drawn.layout.tensors[0], name=f"t{n}", merge="rda") for n in range(4 * SHARDS)]
    made = tuple(
        Fault(
            at=rng.uniform(60.0, seconds),
            kind=rng.choice((*KINDS, "stop shard", "replace shard")),
            which=rng.randrange(1 << 16),
            seconds=rng.choice((0.5, 3.0, 8.0, 20.0)),
        )
        for _ in range(int(FAULTS_AN_HOUR * hours))
    )
    return replace(
        drawn,
        seed=seed,
        run_file=job,
        layout=job.layout(table),
        step_seconds=dict.fromkeys(job.slots, STEP_SECONDS),
        faults=made if storm else (),
        snapshot_entries=100,
    )


def played(one: Scenario, hours: float) -> tuple[float, float]:
    """Ticks in a virtual second, from first to last commit, and learners' share in a version."""
    end, merged = 3600 * hours, list[int]()
    ticks = list[tuple[int, float]]()

    def created(name: str, data: bytes) -> None:
        if name.startswith(LOG):
            records = json.loads(data)["records"]
            for each in (x for x in records if x["kind"] == "Committed" and x["participants"]):
                merged.append(len(each["participants"]))
                ticks.append((each["tick"], world.sim.now))

    with logs_into(None), constant(faults, "FAULTS_END", end):
        world = World(one, ALL)
        try:
            for store in world.stores:
                store.on_create.append(created)
            faults.schedule(world)
            world.sim.run(end, lambda: world.complete)
            faults.stop(world)
            if not world.complete:
                world.sim.run(end + quiet_seconds_max(world), lambda: world.complete)
            assert world.complete, simulate.state(world)
            world.watchers.tell("run_ended")
            (first, began), *_, (last, ended) = (each for each in ticks if each[0] < one.steps)
            return (last - first) / (ended - began), mean(merged) / LEARNERS
        finally:
            world.close()


def check(seed: int, hours: float) -> None:
    quiet, _ = played(scenario(seed, QUIET_SHARE * hours, storm=False), QUIET_SHARE * hours)
    stormy, participation = played(scenario(seed, hours, storm=True), hours)
    found = f"seed {seed}: throughput {stormy / quiet:.3f}, participation {participation:.3f}"
    print(found)  # noqa: T201
    assert THROUGHPUT_MIN <= stormy / quiet <= THROUGHPUT_MAX, found
    assert participation >= PARTICIPATION_MIN, found


def test_a_job_ends_after_a_storm_of_minutes() -> None:
    """Too short for figures: what comes at its end is not made good."""
    _, participation = played(scenario(1, 0.05, storm=True), 0.05)
    assert participation > 0


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("seed", range(20))
def test_a_storm_of_ten_hours_slows_no_job(seed: int) -> None:
    check(seed, 10.0)
