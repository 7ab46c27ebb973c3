"""A job becomes longer while it runs, and its shards hear of it at different times (rule 27)."""

import dataclasses

import pytest

from sim.checkers.every import ALL
from sim.scenario import draw
from sim.simulate import logs_into, run
from sim.world import World

LOCK_STEP = (3, 46, 73, 91, 102, 107)
DECOUPLED = (0, 13, 15, 36)
MORE = 12  # ticks


@pytest.mark.parametrize("told_others", [True, False])
@pytest.mark.parametrize("seed", [*LOCK_STEP, *DECOUPLED])
def test_a_longer_job_goes_on_to_its_new_end_whichever_shard_hears_of_it_first(
    seed: int, told_others: bool
) -> None:
    """The first shard reads it a period before the former end, the others then or never."""
    drawn = draw(seed)
    end, shards = drawn.run_file.steps, drawn.run_file.shards
    assert end is not None
    assert shards > 1
    assert drawn.run_file.sync.lockstep == (seed in LOCK_STEP)
    longer = {0: end - drawn.run_file.sync.period}
    if told_others:
        longer |= dict.fromkeys(range(1, shards), end - 2)
    scenario = dataclasses.replace(drawn, faults=(), longer=longer, steps_longer=end + MORE)
    with logs_into(None):
        world = World(scenario, ALL)
        try:
            assert run(world).result == "Complete"
            for process in world.shards:
                assert process.shard is not None
                assert process.shard.state.ending.length.steps == (end, end + MORE)
                assert process.shard.state.clock.tick >= end + MORE
            assert all(each.training.t_m >= end for each in world.learners.values())
        finally:
            world.close()


@pytest.mark.parametrize("seed", [0, 3, 36, 46, 67, 73])
def test_one_that_becomes_longer_in_its_last_moment_ends_all_the_same(seed: int) -> None:
    """Some shards may have ended; the others go on to the new end, or all have."""
    drawn = draw(seed)
    assert drawn.run_file.steps is not None
    end = drawn.run_file.steps
    scenario = dataclasses.replace(drawn, faults=(), longer={0: end}, steps_longer=end + MORE)
    with logs_into(None):
        world = World(scenario, ALL)
        try:
            assert run(world).result == "Complete"
        finally:
            world.close()
